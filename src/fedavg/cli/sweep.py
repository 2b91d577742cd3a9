"""`fedavg sweep`: one plan, varied along axes and over seeds."""

import json
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

import click

from fedavg.cli.completion import complete_source
from fedavg.cli.run import find_own_code, plan_changes, plan_settings
from fedavg.errors import PlanError
from fedavg.machine import cores

if TYPE_CHECKING:
    from fedavg.plan import Plan
    from fedavg.study.sweep import SweepResult


@click.command()
@click.argument("source", shell_complete=complete_source)
@click.option(
    "--grid",
    "axes",
    multiple=True,
    metavar="OPTION=VALUES",
    help="What is varied: lr=0.03:0.3:7log (a range: seven values on a logarithmic scale; lin: evenly), E=1,5 or "
    "algorithm=fedavg,fedprox:mu=0.1 (a list). Repeated: every combination.",
)
@click.option("--seeds", type=click.IntRange(1), default=None, metavar="N", help="Seeds for each point [1].")
@click.option("--search", default=None, metavar="METHOD:N", help="Draw N points instead: random:20 or optuna:30.")
@click.option("--keep-all", is_flag=True, help="Run all learning rates to the end, even those that cannot win.")
@plan_settings
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where runs, table and figure are kept; what is there is not run again [sweeps/NAME].",
)
@click.option("--jobs", type=click.IntRange(1), default=cores(), help="Runs at a time.", show_default="one per core")
@click.option("--budget", metavar="TIME", help="Stop after 30m, 2h or 1d; the same command continues.")
@click.option("--plot/--no-plot", default=True, help="Draw sweep.png [plot].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout; progress on stderr.")
@click.option("--quiet", is_flag=True, help="No progress.")
def sweep(
    source: str,
    axes: tuple[str, ...],
    seeds: int | None,
    search: str | None,
    keep_all: bool,
    settings: tuple[str, ...],
    out: Path | None,
    jobs: int,
    budget: str | None,
    plot: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a plan for every combination of values and for several seeds; one table, the best first.

    SOURCE is a preset or a TOML file, which may define the sweep itself: a table [sweep] with seeds and search, and
    [sweep.grid] with values by option. Learning rates that cannot win are dropped. Ctrl-C at any time: the same
    command goes on from there.

    \b
    fedavg sweep mnist-2nn --set rounds=30 --grid lr=0.03:0.3:7log --grid E=1,5 --seeds 3
    fedavg sweep plan.toml --search optuna:20 --json
    """
    from fedavg.campaign.duration import seconds
    from fedavg.study.sweep import sweep as run_sweep
    from fedavg.study.sweep.axes import split_axis

    find_own_code()
    changes = plan_changes({}, settings)
    if "workers" in changes:
        raise PlanError(
            f"workers: got {changes['workers']}, and each run of a sweep has one; expected --jobs, the runs at a time"
        )
    plan, asked = _read(source, changes)
    grid = dict(split_axis(text) for text in axes) or asked.get("grid", {})
    if not grid:
        raise PlanError("sweep: nothing is varied; expected --grid OPTION=VALUES, or [sweep.grid] in the plan's file")
    result = run_sweep(
        plan,
        grid,
        seeds=seeds or asked.get("seeds", 1),
        directory=out or Path("sweeps") / Path(source).stem,
        search=search or asked.get("search"),
        keep_all=keep_all or asked.get("keep_all", False),
        jobs=jobs,
        budget_s=seconds(budget) if budget else None,
        say=(lambda text: None) if quiet else (lambda text: click.echo(text, err=True)),
        command=_command(source, axes, settings),
    )
    _report(result, plot, as_json)


def _read(source: str, changes: dict[str, Any]) -> "tuple[Plan, dict[str, Any]]":
    """The plan, and what its file says of a sweep."""
    from fedavg.plan import make_plan, source_values

    values = dict(source_values(source))
    asked: Any = values.pop("sweep", {})
    known = ("grid", "seeds", "search", "keep_all")
    unknown = sorted(set(asked) - set(known)) if isinstance(asked, dict) else ["sweep"]
    if unknown:
        raise PlanError(f"{source}, [sweep]: unknown '{unknown[0]}'; expected {', '.join(known)}")
    return make_plan(values | changes, source), asked


def _command(source: str, axes: tuple[str, ...], settings: tuple[str, ...]) -> str:
    grid = [part for axis in axes for part in ("--grid", axis)]
    changes = [part for text in settings for part in ("--set", text)]
    return join(["fedavg", "sweep", source, *grid, *changes])


def _report(result: "SweepResult", plot: bool, as_json: bool) -> None:
    from fedavg.cli.report import print_sweep
    from fedavg.errors import FedAvgError
    from fedavg.study.sweep.picture import draw

    picture: Path | None = result.directory / "sweep.png" if plot else None
    if picture:
        try:
            draw(result, picture)
        except FedAvgError as error:
            click.echo(f"no picture: {error}", err=True)
            picture = None
    if as_json:
        click.echo(json.dumps(result.to_dict() | {"picture": str(picture) if picture else None}, indent=2))
    else:
        print_sweep(result, picture)
