"""`fedavg study`: published results of others, measured here by one command each. Heavy imports wait."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedavg.cli.groups import Decorated

if TYPE_CHECKING:
    from fedavg.study.cells import FoundCell, PublishedCell


def _options(name: str) -> Callable[[Decorated], Decorated]:
    """What all studies have: where things are kept, and what may be spent."""
    folder = click.Path(file_okay=False, path_type=Path)

    def decorate(command: Decorated) -> Decorated:
        for option in reversed([
            click.option("--budget", metavar="TIME", help="30m, 2h, 1d: do what fits; the same command continues."),
            click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs at a time."),
            click.option("--show", is_flag=True, help="Only show what has been measured; run nothing."),
            click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of data and runs."),
            click.option("--data-dir", metavar="DIR", help="Where data sets are kept."),
            click.option("--out", type=folder, default=Path("docs/results"), show_default=True,
                         help="Where the table (JSON, Markdown) and the figure are written."),
            click.option("--records", type=folder, default=Path(f"docs/results/{name}_records"), show_default=True,
                         help="Where measurements are kept; what is there is not run again."),
            click.option("--runs", type=folder, default=Path(f"runs/{name}"), show_default=True,
                         help="Where runs are recorded, so that they can be resumed."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout."),
        ]):  # fmt: skip
            command = option(command)
        return command

    return decorate


@click.group()
def study() -> None:
    """Published results of others, beside ours: each by one command that can be stopped and resumed.

    \b
    fedavg study robust --gamma 0 --faults 1
    fedavg study robust --own
    fedavg study niid --data mnist --algorithm fedavg
    """


@study.command()
@click.option("--gamma", "gammas", type=float, multiple=True, help="Only these: 1, 0.66, 0.33, 0 (share dealt IID).")
@click.option("--faults", type=click.IntRange(1, 4), multiple=True, help="Only these numbers of liars: 1 to 4.")
@click.option("--own", is_flag=True, help="Our own table instead: each reducer against each attack.")
@_options("robust")
def robust(
    gammas: tuple[float, ...], faults: tuple[int, ...], own: bool, budget: str | None, jobs: int, show: bool, seed: int,
    data_dir: str | None, out: Path, records: Path, runs: Path, as_json: bool,
) -> None:  # fmt: skip
    """ByzFL's heat map: accuracy under the worst of three attacks, by heterogeneity and number of liars.

    With --own: accuracy with 0, 10, 20 and 30 % liars for each of our reducers and attacks.
    """
    from fedavg.study import reducers
    from fedavg.study import robust as published

    if wrong := sorted(set(gammas) - set(published.GAMMAS)):
        raise click.BadParameter(f"got {wrong[0]:g}; expected one of 1, 0.66, 0.33, 0", param_hint="--gamma")
    if own and (gammas or faults):
        raise click.UsageError("--own has no --gamma and no --faults; expected it alone")
    if own:
        chosen, every, write = reducers.cells(seed), reducers.cells(seed), reducers.write
    else:
        chosen = published.cells(gammas or published.GAMMAS, faults or (1, 2, 3, 4), seed)
        every, write = published.cells(seed=seed), published.write
    if not show:
        _run(chosen, records, runs, (jobs, budget, data_dir), None)
    _report(every, records, out, write, as_json)


@study.command()
@click.option("--data", type=click.Choice(["mnist", "cifar10"]), multiple=True, help="Only these data sets.")
@click.option(
    "--partition", "partitions", multiple=True, help="Only these: dirichlet:0.5:by=label:capped=true, labels:2, iid."
)
@click.option("--algorithm", "algorithms", multiple=True, help="Only these: fedavg, scaffold, fedprox, ...")
@click.option("--stage", type=click.IntRange(1), help="Take all runs to this many rounds before any goes further.")
@_options("niid")
def niid(
    data: tuple[str, ...], partitions: tuple[str, ...], algorithms: tuple[str, ...], stage: int | None,
    budget: str | None, jobs: int, show: bool, seed: int, data_dir: str | None, out: Path, records: Path, runs: Path,
    as_json: bool,
) -> None:  # fmt: skip
    """NIID-Bench as Flower reproduces it: FedAvg, SCAFFOLD, FedProx, FedNova (and FedDyn) on data that is not IID."""
    from fedavg.study import niid as published

    chosen = published.cells(data, partitions, algorithms, seed)
    if not chosen:
        raise click.UsageError("no cell has these values; expected some of those that --help names")
    if not show:
        _run(chosen, records, runs, (jobs, budget, data_dir), stage)
    _report(published.cells(seed=seed), records, out, published.write, as_json)


@study.command("world")
@click.argument("name", type=click.Choice(["daynight", "async", "closing"]))
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes that train clients.")
@click.option("--rounds", type=click.IntRange(1), help="Run only this many rounds, for a first look; needs --out.")
@click.option("--data-dir", metavar="DIR", help="Where data sets are kept.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path),
              help="Where world_NAME.json and figures/world_NAME.png are written [docs/results].")  # fmt: skip
@click.option("--runs", type=click.Path(file_okay=False, path_type=Path), default=Path("runs/world"),
              show_default=True, help="Where runs are recorded; stopped ones continue.")  # fmt: skip
def in_world(name: str, workers: int, rounds: int | None, data_dir: str | None, out: Path | None, runs: Path) -> None:
    """What a simulated world does to learning: who is there (daynight), asynchrony (async), when rounds end (closing).

    Each takes minutes; the plans and their results are in docs/world.md.
    """
    from fedavg.study import world_figures, worlds

    if rounds is not None and out is None:
        raise click.UsageError("--rounds: the record would take the place of the whole study's; expected --out as well")
    out, directory = out or Path("docs/results"), runs / (f"{name}-{rounds}" if rounds else name)
    record = worlds.measure(name, directory, lambda text: click.echo(text, err=True), workers, rounds, data_dir)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    worlds.save(record, out / f"world_{name}.json")
    world_figures.draw(record, out / "figures" / f"world_{name}.png")
    for case, found in record["cases"].items():
        hours = found["world"].get("hours_to_target")
        reached = f", target after {hours:.2f} h" if hours is not None else ""
        click.echo(f"{case:<32}accuracy {found['accuracy'][-1]:.4f} after {found['hours'][-1]:.1f} h{reached}")


def _run(
    cells: "Sequence[PublishedCell]",
    records: Path,
    runs: Path,
    given: tuple[int, str | None, str | None],
    stage: int | None,
) -> None:
    """Run what is missing; Ctrl-C leaves records of what has been done."""
    from fedavg.campaign.duration import seconds
    from fedavg.campaign.execute import Outlay
    from fedavg.campaign.records import Records
    from fedavg.study.cells import pursue

    jobs, budget, data_dir = given
    outlay = Outlay(jobs, seconds(budget) if budget else None, data_dir)
    pursue(cells, Records(records), runs, outlay, lambda text: click.echo(text, err=True), stage)


def _report(
    cells: "Sequence[PublishedCell]",
    records: Path,
    out: Path,
    write: "Callable[[Sequence[FoundCell], Path], list[Path]]",
    as_json: bool,
) -> None:
    """Write the table and the figure of all that is on record, and say what is left."""
    from fedavg.campaign.records import Records
    from fedavg.study.cells import found

    store = Records(records)
    results = [found(cell, store, partial=True) for cell in cells]
    click.echo(f"wrote {', '.join(map(str, write(results, out)))}", err=True)
    left = [result for result in results if result.rounds[0] < result.rounds[1]]
    click.echo(f"{len(results) - len(left)} of {len(results)} cells are measured", err=True)
    for command in dict.fromkeys(result.cell.command for result in left):
        click.echo(f"left: {command}", err=True)
    if as_json:
        click.echo(json.dumps([result.to_dict() for result in results], indent=2))
