"""`fedavg run` and `fedavg resume`. Options of the plan are made from its fields, so none is listed twice."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import fields
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedavg.cli.completion import complete_option, complete_run, complete_source
from fedavg.errors import PlanError

if TYPE_CHECKING:
    from fedavg.fleets import Fleet
    from fedavg.plan import Plan
    from fedavg.runner import Result
    from fedavg.server import Event

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout; progress on stderr.")
_quiet = click.option("--quiet", is_flag=True, help="No progress line.")


def fleet_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where clients run."""
    fleet = click.option(
        "--fleet",
        default="local",
        shell_complete=complete_option,
        metavar="NAME",
        help="Where clients run: local, ray, ray:auto, ray:HOST:PORT, or installed code by its name [local].",
    )
    per_node = click.option(
        "--workers-per-node",
        type=click.IntRange(1),
        help="On Ray: workers on each node [one for each of its cores].",
    )
    return fleet(per_node(command))


def chosen_fleet(fleet: str, workers_per_node: int | None, workers: str | None) -> "Fleet":
    """The fleet that the options name; an option that would do nothing there is refused."""
    from fedavg.fleets import make_fleet

    kind, address, *_ = [*fleet.split(":"), "", ""]
    if workers and kind == "ray" and address not in ("", "local") and "=" not in address:
        raise PlanError(
            f"--workers: got {workers} with --fleet {fleet}, whose nodes have workers of their own; expected "
            "--workers-per-node, or neither"
        )
    return make_fleet(fleet if workers_per_node is None else f"{fleet}:workers_per_node={workers_per_node}")


_plot = click.option("--plot/--no-plot", default=True, help="Draw the curve to curve.png in the run directory [plot].")


_track = click.option(
    "--track", "tracked", multiple=True, metavar="NAME[:PLACE]",
    help="Also report each round to another tool, live: jsonl, tensorboard, mlflow, wandb; may be repeated.",
)  # fmt: skip

plan_settings = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any option of the plan; may be repeated."
)


def plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """One option for each field of the plan; a value not given is None and stays as the preset or file has it."""
    from fedavg.plan import Plan

    for spec in reversed(fields(Plan)):
        flag = spec.metadata["flag"] or f"--{spec.name.replace('_', '-')}"
        default = "" if spec.default in (None, ()) or "[" in spec.metadata["help"] else f" [{_shown(spec.default)}]"
        option = click.option(
            flag,
            spec.name,
            default=None,
            metavar="VALUE",
            help=spec.metadata["help"] + default,
            shell_complete=complete_option,
        )
        command = option(command)
    return command


def _shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


@click.command()
@click.argument("source", shell_complete=complete_source)
@plan_options
@plan_settings
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where to record the run [runs/NAME-DATE-TIME].")
@click.option("--dry-run", is_flag=True, help="Print the plan in full with what follows from it, and stop.")
@fleet_options
@_track
@_plot
@_quiet
@_json
def run(
    source: str,
    settings: tuple[str, ...],
    run_dir: Path | None,
    dry_run: bool,
    fleet: str,
    workers_per_node: int | None,
    tracked: tuple[str, ...],
    plot: bool,
    quiet: bool,
    as_json: bool,
    **options: str | None,
) -> None:
    """Train by a plan: SOURCE is a preset or a TOML file.

    Presets: mnist-2nn, mnist-cnn, shakespeare-lstm, cifar-cnn, posts-lstm.

    \b
    fedavg run mnist-2nn -C 0.1 -E 1 -B 10 --lr 0.1 --rounds 100 --target 0.97
    fedavg run plan.toml --set rounds=50 --dry-run
    """
    from fedavg.plan import load_plan

    find_own_code()
    given = plan_changes(options, settings)
    plan = load_plan(source, given)
    clients = chosen_fleet(fleet, workers_per_node, given.get("workers"))
    if dry_run:
        _dry_run(plan, as_json)
        return
    from fedavg import runner

    _warn_of_seeded_noise(plan)
    directory = run_dir or _new_directory(Path(source).stem)
    try:
        with _tracking(tracked, directory, plan) as watch:
            result = runner.run(plan, directory, watch, clients, progress=not quiet)
    finally:
        with suppress(OSError):  # a plan that proved bad leaves nothing behind
            directory.rmdir()
    _report(result, plot, as_json)


def _new_directory(name: str) -> Path:
    """runs/NAME-DATE-TIME, made at once: of two runs that start in the same second, each gets its own."""
    first = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    for number in count(1):
        directory = first if number == 1 else first.with_name(f"{first.name}-{number}")
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        return directory
    raise AssertionError("there is always a next number")


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path), shell_complete=complete_run)
@click.option("--workers", default=None, metavar="VALUE", help="Processes that train clients [the plan's].")
@click.option("--data-dir", default=None, metavar="VALUE", help="Where data sets are kept [the plan's].")
@click.option(
    "--rounds", default=None, metavar="VALUE", help="Make the run longer: this many rounds in all [the plan's]."
)
@click.option("--worker-timeout", default=None, metavar="VALUE", help="Seconds a worker may be silent [the plan's].")
@click.option("--start-method", default=None, metavar="VALUE", help="auto, fork, spawn or forkserver [the plan's].")
@fleet_options
@_track
@_plot
@_quiet
@_json
def resume(
    run_dir: Path,
    fleet: str,
    workers_per_node: int | None,
    tracked: tuple[str, ...],
    plot: bool,
    quiet: bool,
    as_json: bool,
    **options: str | None,
) -> None:
    """Resume a run that was stopped or killed; the result is that of the uninterrupted run, bit for bit.

    With --rounds, the run is made longer: the result is that of a run planned with this many rounds.
    """
    from fedavg import runner
    from fedavg.runlog.rundir import RunDir

    find_own_code()
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    plan = RunDir(run_dir).plan(**changes)
    _warn_of_seeded_noise(plan)
    clients = chosen_fleet(fleet, workers_per_node, options["workers"])
    with _tracking(tracked, run_dir, plan) as watch:
        result = runner.resume(run_dir, watch, clients, progress=not quiet, **changes)
    _report(result, plot, as_json)


def _tracking(
    tracked: tuple[str, ...], directory: Path, plan: "Plan"
) -> "AbstractContextManager[Callable[[Event], None] | None]":
    """What tells other tools of the run; one that is not there is refused before anything begins."""
    if not tracked:
        return nullcontext()
    from fedavg.study.track import new_tracker, tracking

    return tracking([new_tracker(text, directory) for text in tracked], plan)


def _warn_of_seeded_noise(plan: "Plan") -> None:
    """The first line: a simulation that can be repeated must not be taken for a private release."""
    from fedavg.stages import make_stage

    if plan.noise_source == "seeded" and any(make_stage(stage).hides_metrics for stage in plan.stages):
        click.echo(
            "warning: the noise follows from --seed, so whoever knows the seed can remove it; this protects "
            "nobody outside of a simulation (--noise-source os does)",
            err=True,
        )


def find_own_code() -> None:
    """Code that a plan names is also found in the current folder; what is installed comes first."""
    sys.path.append(str(Path.cwd()))


def setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise PlanError(f"--set: got '{text}'; expected KEY=VALUE, as in rounds=50")
    return key, value


def plan_changes(options: Mapping[str, str | None], settings: Sequence[str]) -> dict[str, str]:
    """What the command line says of a plan, by options of their own and by --set; each only once."""
    given = [(name, value) for name, value in options.items() if value is not None]
    changes: dict[str, str] = {}
    for name, value in [*given, *map(setting, settings)]:
        if name in changes:
            raise PlanError(f"{name}: got both '{changes[name]}' and '{value}'; expected it once")
        changes[name] = value
    return changes


def _dry_run(plan: "Plan", as_json: bool) -> None:
    from fedavg.study.estimate import derive

    derived = derive(plan)
    if as_json:
        click.echo(json.dumps({"plan": plan.to_dict(), "derived": derived, **derived}, indent=2))
        return
    click.echo(plan.to_toml())
    click.echo("# what follows from it")
    for name, value in derived.items():
        click.echo(f"# {name} = {value}")


def _report(result: "Result", plot: bool, as_json: bool) -> None:
    from fedavg.cli.report import print_summary
    from fedavg.errors import FedAvgError
    from fedavg.runlog.plot import plot_run
    from fedavg.runlog.rundir import RunDir

    directory = RunDir(Path(str(result.summary.run_dir)))
    picture: Path | None = directory.path / "curve.png" if plot else None
    if picture:
        try:
            plot_run(result.plan, result.goal, directory.rows(), picture)
        except FedAvgError as error:
            click.echo(f"no picture: {error}", err=True)
            picture = None
    if as_json:
        click.echo(json.dumps(result.summary.to_dict() | {"picture": str(picture) if picture else None}, indent=2))
    else:
        print_summary(result.summary, picture)
