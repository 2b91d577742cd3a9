"""The runs of a service from the command line: submit, list, pause, cancel, extend."""

import json
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from fedavg.cli.asking import FILE, AskedServer, ask, reaching
from fedavg.cli.completion import complete_source
from fedavg.cli.operate import as_json_option
from fedavg.cli.run import plan_settings, setting
from fedavg.errors import FleetError

_server = click.option("--server", "url", required=True, metavar="URL", help="The service.")
_run = click.argument("run", type=click.IntRange(1))


@click.command()
@click.argument("source", shell_complete=complete_source)
@_server
@reaching()
@plan_settings
@click.option("--name", default="", help="What the run is for, for people.")
@click.option("--init", type=FILE, metavar="MODEL.SAFETENSORS", help="Start from this model [the task's own].")
def submit(server: AskedServer, source: str, settings: tuple[str, ...], name: str, init: Path | None) -> None:
    """Submit a plan to the service at URL; prints the number of the run.

    \b
    fedavg submit plan.toml --server https://server.example:8443 --admin-token-file admin-token
    """
    from fedavg.plan import load_plan
    from fedavg.plan.presets import source_values
    from fedavg.programs.servable import check_data_is_named

    given = dict(setting(text) for text in settings)
    check_data_is_named({**source_values(source), **given})
    plan = load_plan(source, given)
    model = init.read_bytes() if init else None
    digest = None if model is None else sha256(model).hexdigest()
    order = {"plan": plan.to_toml(), "name": name, "init": digest}
    number = ask(server, "POST", "/admin/runs", order)["run"]
    if model is not None:
        try:
            ask(server, "PUT", f"/admin/runs/{number}/model", data=model)
        except FleetError:
            ask(server, "POST", f"/admin/runs/{number}/cancel")
            raise
    click.echo(number)


@click.command()
@click.argument("url")
@reaching()
@as_json_option
def runs(server: AskedServer, as_json: bool) -> None:
    """List the runs of the service at URL."""
    rows: list[dict[str, Any]] = ask(server, "GET", "/admin/runs")["runs"]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo("run  state       rounds  submitted         by          name")
    for row in rows:
        submitted = datetime.fromtimestamp(row["submitted"], UTC).strftime("%Y-%m-%d %H:%M")
        rounds = "-" if row["committed"] is None else row["committed"]
        click.echo(f"{row['run']:<4} {row['state']:<11} {rounds:<7} {submitted}  {row['by']:<11} {row['name']}")
        if row["detail"]:
            click.echo(f"     {row['detail']}")
        for change in row["changes"]:
            said = ", ".join(f"{name} {change[name]}" for name in ("rounds", "lr", "from_round") if name in change)
            click.echo(f"     extended after round {change['after_round']} by {change['by']}: {said}")


@click.command()
@_run
@_server
@reaching()
@click.option("--off", is_flag=True, help="Instead: go on with a run that is paused, or has failed.")
def pause(server: AskedServer, run: int, off: bool) -> None:
    """Pause a run of a service, or go on with it. Its round under way is parked, and the next run begins."""
    ask(server, "POST", f"/admin/runs/{run}/{'go-on' if off else 'pause'}")
    click.echo(f"run {run} {'is in the queue again' if off else 'pauses'}")


@click.command()
@_run
@_server
@reaching()
def cancel(server: AskedServer, run: int) -> None:
    """Cancel a run of a service for good; what it has committed stays on record."""
    ask(server, "POST", f"/admin/runs/{run}/cancel")
    click.echo(f"run {run} is cancelled")


@click.command()
@_run
@_server
@reaching()
@click.option("--rounds", type=click.IntRange(1), help="So many rounds in all.")
@click.option("--lr", type=click.FloatRange(0, min_open=True), help="Another learning rate.")
@click.option("--from-round", type=click.IntRange(1), help="The first round of that rate [the next one].")
def extend(server: AskedServer, run: int, rounds: int | None, lr: float | None, from_round: int | None) -> None:
    """Give a run of a service more rounds, or another rate from a round on; its record says when and by whom.

    \b
    fedavg extend 3 --server https://server.example:8443 --admin-token-file admin-token --rounds 200 --lr 0.01
    """
    ask(server, "POST", f"/admin/runs/{run}/extend", {"rounds": rounds, "lr": lr, "from_round": from_round})
    click.echo(f"run {run} is extended")
