"""`fedavg world`: look at a simulated world without training, and bring published traces into our form."""

import json
from pathlib import Path

import click

from fedavg.errors import PlanError


@click.group()
def world() -> None:
    """Simulated worlds: who is there when, and on what devices (docs/world.md)."""


@world.command()
@click.argument("text", metavar="WORLD")
@click.option("--clients", type=click.IntRange(1), default=1000, show_default=True, help="Clients of the world.")
@click.option("--wanted", type=click.IntRange(1), default=20, show_default=True, help="Reports that a round needs.")
@click.option("--closing", default="all", show_default=True, help="When a round has enough, as in a plan.")
@click.option("--sampling", default="fixed", show_default=True, help="Who is asked, as in a plan.")
@click.option("--examples", type=float, default=600.0, show_default=True, help="Examples that a client trains on.")
@click.option("--megabytes", type=float, default=0.8, show_default=True, help="MB of the model, down and up.")
@click.option("--days", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Simulated days.")
@click.option("--seed", type=int, default=0, show_default=True, help="The seed of all draws.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the last day as PNG.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def day(text: str, picture: Path | None, days: float, megabytes: float, as_json: bool, **options: object) -> None:
    """Simulate a day in WORLD without training: how rounds go, who takes part, what is wasted.

    \b
    fedavg world day diurnal:4 --closing deadline:600:1.3 --picture day.png
    fedavg world day trace:phones.jsonl --clients 500
    """
    from fedavg.study.clockwork import Scene, ticks
    from fedavg.study.timeline import draw_day
    from fedavg.world.presence import DAY_S
    from fedavg.world.report import described

    size = int(megabytes * 1e6)
    scene = Scene(text, bytes_down=size, bytes_up=size, **options)  # type: ignore[arg-type]
    passed = list(ticks(scene, days * DAY_S))
    if not passed:
        raise PlanError(f"world: no round began within {days:g} days; expected more days")
    found = described([tick.row.to_dict() for tick in passed], passed[-1].memory.reported)
    found["rounds"] = sum(not tick.outcome.closed.reason for tick in passed)
    found["abandoned"] = len(passed) - int(str(found["rounds"]))
    if picture:
        draw_day(scene, passed, picture, max(0.0, (days - 1) * DAY_S))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        click.echo(f"{name:<16}{_shown(value)}")
    if picture:
        click.echo(f"{'picture':<16}{picture}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_shown(each)}" for name, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@world.command()
@click.argument("form", type=click.Choice(["fedscale", "flash"]))
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--devices", type=click.Path(path_type=Path), help="FedScale's client_device_capacity, if you have it.")
def convert(form: str, source: Path, target: Path, devices: Path | None) -> None:
    """Write a published trace in our form: SOURCE is FedScale's client_behave_trace or FLASH's user behaviour.

    Nothing in the files is run: a pickle may hold plain values only.

    \b
    fedavg world convert fedscale client_behave_trace trace.jsonl --devices client_device_capacity
    fedavg run mnist-2nn --world trace:trace.jsonl:reuse=true
    """
    from fedavg.world.convert import fedscale, flash
    from fedavg.world.trace import read_trace, write_trace

    if form == "flash" and devices:
        raise PlanError("--devices: got a file with form flash, which has its speeds elsewhere; expected none")
    count = write_trace(target, fedscale(source, devices) if form == "fedscale" else flash(source))
    clients = len(read_trace(target).first) - 1
    click.echo(f"{target}: {clients} clients in {count} rows")
