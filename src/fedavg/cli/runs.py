"""The runs of a service from the command line: submit, list, pause, cancel, extend."""

import json
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import click

from fedavg.cli.asking import FILE, AskedServer, ask, reaching
from fedavg.cli.completion import complete_source
from fedavg.cli.operate import as_json_option, print_spent
from fedavg.cli.run import find_own_code, plan_changes, plan_settings
from fedavg.errors import FleetError

_server = click.option("--server", "url", required=True, metavar="URL", help="The service.")
_run = click.argument("run", type=click.IntRange(1))


@click.command()
@click.argument("source", shell_complete=complete_source)
@_server
@reaching()
@plan_settings
@click.option("--name", default="", help="A name for people to see.")
@click.option("--init", type=FILE, metavar="MODEL.SAFETENSORS", help="Start from this model [the task's own].")
def submit(server: AskedServer, source: str, settings: tuple[str, ...], name: str, init: Path | None) -> None:
    """Submit a plan to the service at URL; prints the number of the run.

    \b
    fedavg submit plan.toml --server https://server.example:8443 --admin-token-file admin-token
    """
    from fedavg.plan import load_plan
    from fedavg.plan.presets import source_values
    from fedavg.programs.servable import check_data_is_named

    find_own_code()
    given = plan_changes({}, settings)
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
@click.option("--ledger", type=click.IntRange(1), metavar="RUN",
              help="Instead: the privacy cost of each round of this run, and the changes made to it.")  # fmt: skip
@as_json_option
def runs(server: AskedServer, ledger: int | None, as_json: bool) -> None:
    """List the runs of the service at URL."""
    if ledger is not None:
        _print_ledger(ask(server, "GET", f"/admin/runs/{ledger}/ledger"), as_json)
        return
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
            said = ", ".join(f"{name} {change[name]}" for name in _SAID if name in change)
            what = "rolled back" if "to_round" in change else "extended"
            click.echo(f"     {what} after round {change['after_round']} by {change['by']}: {said}")


def _print_ledger(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    print_spent(found["ledger"])
    for change in found["changes"]:
        said = ", ".join(f"{name} {value}" for name, value in change["entry"].items() if name in _SAID)
        at = datetime.fromtimestamp(change["at"], UTC).strftime("%Y-%m-%d %H:%M")
        click.echo(
            f"{at}  {change['what']} after round {change['after_round']} by {change['by']}{said and f': {said}'}"
        )


#: What is shown of a change.
_SAID: Final = ("rounds", "lr", "from_round", "to_round")


@click.command()
@_run
@_server
@reaching()
@click.option("--off", is_flag=True, help="Instead: continue a run that is paused or has failed.")
def pause(server: AskedServer, run: int, off: bool) -> None:
    """Pause a run of a service, or continue it. Its round under way is parked, and the next run begins."""
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
@click.option("--rounds", type=click.IntRange(1), help="The new total number of rounds.")
@click.option("--lr", type=click.FloatRange(0, min_open=True), help="Another learning rate.")
@click.option("--from-round", type=click.IntRange(1), help="The first round of that rate [the next one].")
def extend(server: AskedServer, run: int, rounds: int | None, lr: float | None, from_round: int | None) -> None:
    """Give a run of a service more rounds, or another rate from a round on; its record says when and by whom.

    \b
    fedavg extend 3 --server https://server.example:8443 --admin-token-file admin-token --rounds 200 --lr 0.01
    """
    ask(server, "POST", f"/admin/runs/{run}/extend", {"rounds": rounds, "lr": lr, "from_round": from_round})
    click.echo(f"run {run} is extended")


@click.command()
@_run
@_server
@reaching()
@click.option("--to-round", type=click.IntRange(0), required=True, help="The round to continue from; 0: the beginning.")
def rollback(server: AskedServer, run: int, to_round: int) -> None:
    """Take a run of a service back to an earlier round. It must be paused, done or have failed, and is paused then.

    What later rounds released stays on the privacy ledger. A run whose devices would have to go back
    too is refused.

    \b
    fedavg rollback 3 --to-round 40 --server https://server.example:8443 --admin-token-file admin-token
    fedavg pause 3 --off --server ...
    """
    ask(server, "POST", f"/admin/runs/{run}/rollback", {"to_round": to_round})
    click.echo(f"run {run} is paused after round {to_round}; 'fedavg pause {run} --off' continues it")
