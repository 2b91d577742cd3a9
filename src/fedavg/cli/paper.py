"""`fedavg paper`: the paper's tables and figures, each from one command. Heavy imports wait until a command runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedavg.cli.groups import Decorated
from fedavg.machine import cores

if TYPE_CHECKING:
    from fedavg.campaign.execute import Aim, Outlay
    from fedavg.campaign.records import Records
    from fedavg.paper.cells import Cell
    from fedavg.paper.figures import Drawn, Line
    from fedavg.paper.measure import MeasuredCell

_records = click.option(
    "--records",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="docs/results/records in a clone; otherwise those of the package, with runs/paper-records",
    help="Where measurements are kept; what is there is not run again.",
)
_runs = click.option(
    "--runs",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/paper"),
    show_default=True,
    help="Where runs are recorded, so that they can be resumed.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout; progress on stderr.")
_only = click.option(
    "--only",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Only cells with these values, as in model=2nn,partition=iid,C=0.1; repeated: cells of any. Keys: model "
    "(2nn, cnn, lstm, cifar), partition (iid, non-iid), algorithm (sgd, fedsgd, fedavg), C, E, B (inf for ∞), target, "
    "pixels (centred, unit). The 2NN is measured with pixels in [-0.5, 0.5]; pixels=unit measures it in [0, 1].",
)


def _outlay_options(command: Decorated) -> Decorated:
    for option in reversed(
        [
            click.option("--budget", metavar="TIME", help="30m, 2h, 1d: do what fits, the cheapest first."),
            click.option(
                "--jobs",
                type=click.IntRange(1),
                default=cores(),
                help="Runs at a time.",
                show_default="one per core",
            ),
            click.option("--show", is_flag=True, help="Only show what has been measured; run nothing."),
            click.option("--data-dir", metavar="DIR", help="Where data sets are kept."),
        ]
    ):
        command = option(command)
    return command


@click.group()
def paper() -> None:
    """The tables and figures of McMahan et al. (2017), regenerated, beside the paper's numbers.

    A cell is measured by the paper's protocol: a learning-rate search on the grid of 10^(1/3) that widens until the
    best rate is strictly inside, monotone curves, rounds to the target by linear interpolation. Runs go side by side,
    one per core; Ctrl-C at any time: the same command continues from there.

    \b
    fedavg paper table4 --only partition=iid --budget 1h
    fedavg paper table1 --only model=2nn,C=0.1 --seeds 3
    fedavg paper figure7
    fedavg paper status
    """


def _table_command(number: int, what: str) -> click.Command:
    @click.command(f"table{number}", help=f"Table {number}: {what}.")
    @_only
    @click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Seeds: median and range.")
    @click.option("--refine", is_flag=True, help="Search the grid of 10^(1/6) around the best rate too.")
    @click.option("--markdown", is_flag=True, help="Print Markdown.")
    @_outlay_options
    @_records
    @_runs
    @_json
    def command(
        only: tuple[str, ...],
        seeds: int,
        refine: bool,
        markdown: bool,
        budget: str | None,
        jobs: int,
        show: bool,
        data_dir: str | None,
        records: Path | None,
        runs: Path,
        as_json: bool,
    ) -> None:
        from fedavg.paper.choose import choose_cells
        from fedavg.paper.shipped import open_records

        cells = choose_cells(number, only)
        store, outlay = open_records(records), _outlay(jobs, budget, data_dir)
        try:
            if not show:
                _pursue(_cell_goals(cells, store, seeds, refine), store, runs, outlay)
        finally:
            _print_table(number, cells, store, runs, markdown, as_json)

    return command


def _outlay(jobs: int, budget: str | None, data_dir: str | None) -> "Outlay":
    from fedavg.campaign.duration import seconds
    from fedavg.campaign.execute import Outlay

    return Outlay(jobs, seconds(budget) if budget else None, data_dir)


def _cell_goals(cells: "list[Cell]", store: "Records", seeds: int, refine: bool) -> "list[Aim]":
    """Cheapest first, so that a budget gives as many cells as it can."""
    from fedavg.campaign.execute import Aim
    from fedavg.paper.cost import search_seconds
    from fedavg.paper.measure import needs

    def goal(cell: "Cell") -> Aim:
        return Aim(
            cell.name,
            cell.command,
            lambda known: needs(cell, known, seeds, refine),
            search_seconds(cell, store),
        )

    return sorted(map(goal, cells), key=lambda goal: goal.estimate_s)


def _pursue(goals: "list[Aim]", store: "Records", runs: Path, outlay: "Outlay") -> None:
    from fedavg.campaign.duration import duration
    from fedavg.campaign.execute import Campaign, check_report

    report = Campaign(goals, store, runs, outlay, lambda text: click.echo(text, err=True)).run()
    for goal in report.left:
        cost = duration(goal.estimate_s / outlay.jobs)
        click.echo(f"left: {goal.name} (about {cost} on {outlay.jobs} cores): {goal.command}", err=True)
    check_report(report)


def _print_table(number: int, cells: "list[Cell]", store: "Records", runs: Path, markdown: bool, as_json: bool) -> None:
    from rich.console import Console

    from fedavg.paper import tables
    from fedavg.paper.cells import ALL_CELLS

    by_cell, costs = _all_results(store, runs), _costs(ALL_CELLS, store)
    shown = [by_cell[cell] for cell in cells]
    if as_json:
        _print_json({"table": number, "cells": [tables.as_json(r, by_cell, costs[r.cell]) for r in shown]})
    elif markdown:
        click.echo(tables.markdown(number, shown, by_cell, costs), nl=False)
    else:
        Console(width=max(120, Console().width)).print(tables.terminal_table(number, shown, by_cell))


def _all_results(store: "Records", runs: Path) -> "dict[Cell, MeasuredCell]":
    from fedavg.paper.cells import ALL_CELLS
    from fedavg.paper.measure import results, running_keys

    return {result.cell: result for result in results(ALL_CELLS, store, running_keys(runs))}


def _costs(cells: "tuple[Cell, ...]", store: "Records") -> "dict[Cell, float]":
    from fedavg.paper.cost import search_seconds

    return {cell: search_seconds(cell, store) for cell in cells}


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2, allow_nan=False))


@paper.command()
@_records
@_runs
@_json
def status(records: Path | None, runs: Path, as_json: bool) -> None:
    """Every cell of Tables 1 to 4: measured, running or not run, with the estimated time on one core."""
    from rich.console import Console

    from fedavg.paper import tables
    from fedavg.paper.cells import CELLS
    from fedavg.paper.shipped import open_records

    store = open_records(records)
    by_cell, costs = _all_results(store, runs), _costs(CELLS, store)
    if as_json:
        _print_json({"cells": [tables.as_json(by_cell[cell], by_cell, costs[cell]) for cell in CELLS]})
    else:
        Console(width=max(120, Console().width)).print(tables.status_table(by_cell, costs))


@paper.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/results"),
    show_default=True,
    help="Where tables.md and figures/ are written.",
)
@_records
@_runs
def render(out: Path, records: Path | None, runs: Path) -> None:
    """Write all four tables (tables.md) and all figures that have records (PNG and SVG). Runs nothing."""
    from fedavg.paper import tables
    from fedavg.paper.cells import CELLS
    from fedavg.paper.shipped import open_records

    store = open_records(records)
    by_cell, costs = _all_results(store, runs), _costs(CELLS, store)
    parts = [
        tables.markdown(number, [by_cell[cell] for cell in CELLS if cell.table == number], by_cell, costs)
        for number in tables.TITLES
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "tables.md").write_text("\n".join([tables.HEADER, *parts]), encoding="utf-8")
    click.echo(f"wrote {out / 'tables.md'}", err=True)
    for number in range(1, 11):
        _tell(number, _draw(number, store, out / "figures"))


def _draw(number: int, store: "Records", folder: Path) -> "Drawn":
    from fedavg.paper import figure1, figures

    if number != 1:
        return figures.draw(figures.CHARTS[number], store, folder)
    mixtures = figure1.known(store)
    return figures.Drawn(figure1.draw(mixtures, folder)) if mixtures else figures.Drawn(missing=(figure1.COMMAND,))


def _tell(number: int, drawn: "Drawn") -> None:
    if drawn.files:
        click.echo(f"wrote {' and '.join(map(str, drawn.files))}", err=True)
    if drawn.missing:
        click.echo(f"figure {number} has no records of: {', '.join(drawn.missing)}", err=True)


_figures = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/results/figures"),
    show_default=True,
    help="Where the PNG and the SVG are written.",
)


@click.command("figure1", help="Figure 1: mixtures of two models, from different and from shared initial weights.")
@click.option("--show", is_flag=True, help="Only draw what has been computed.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of data and initial weights.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Where data sets are kept.")
@_figures
@_records
@_json
def _figure1(show: bool, seed: int, data_dir: Path | None, out: Path, records: Path | None, as_json: bool) -> None:
    from fedavg.paper import figure1
    from fedavg.paper.shipped import open_records

    store = open_records(records)
    known = figure1.known(store)
    if not show and (known is None or known.seed != seed):
        click.echo("training 3 models, then 100 evaluations on 60,000 examples: a minute or two", err=True)
        figure1.save(figure1.compute(seed, data_dir), store.directory)
    _report_figure(1, store, out, as_json)


def _report_figure(number: int, store: "Records", out: Path, as_json: bool) -> None:
    drawn = _draw(number, store, out)
    _tell(number, drawn)
    if as_json:
        _print_json({"figure": number, "files": [str(f) for f in drawn.files], "missing": list(drawn.missing)})


def _figure_command(number: int, what: str) -> click.Command:
    @click.command(f"figure{number}", help=f"Figure {number}: {what}.")
    @_only
    @click.option("--rounds", type=click.IntRange(1), help="Run up to this round, beyond the target too.")
    @click.option(
        "--lr", "rates", type=float, multiple=True, help="Learning rates to run, where no table chooses them."
    )
    @_outlay_options
    @_figures
    @_records
    @_runs
    @_json
    def command(
        only: tuple[str, ...],
        rounds: int | None,
        rates: tuple[float, ...],
        budget: str | None,
        jobs: int,
        show: bool,
        data_dir: str | None,
        out: Path,
        records: Path | None,
        runs: Path,
        as_json: bool,
    ) -> None:
        from fedavg.paper.choose import choose
        from fedavg.paper.figures import CHARTS, lines, with_rates
        from fedavg.paper.shipped import open_records

        store, outlay = open_records(records), _outlay(jobs, budget, data_dir)
        chart = with_rates(CHARTS[number], rates)
        chosen = choose([line for _, line in lines(chart)], only)
        try:
            if not show:
                _pursue(_line_goals(number, chosen, rounds or chart.rounds, store), store, runs, outlay)
        finally:
            _report_figure(number, store, out, as_json)

    return command


def _line_goals(number: int, lines: "list[Line]", rounds: int, store: "Records") -> "list[Aim]":
    """For each line the search of its cell, if it is one of a table, then its runs up to the rounds asked for."""
    from fedavg.campaign.execute import Aim
    from fedavg.paper import figures
    from fedavg.paper.choose import telling_keys
    from fedavg.paper.cost import line_seconds

    keys = telling_keys([line for _, line in figures.lines(figures.CHARTS[number])])

    def goal(line: "Line") -> Aim:
        choice = ",".join(f"{key}={line.labels[key]}" for key in keys)
        return Aim(
            f"figure{number} {choice}",
            f"fedavg paper figure{number} --only {choice}",
            lambda known: figures.line_needs(line, rounds, known),
            line_seconds(line.setting, rounds * max(len(line.rates), 1), store),
        )

    searches = _cell_goals([line.cell for line in lines if line.cell], store, seeds=1, refine=False)
    return [*searches, *sorted(map(goal, lines), key=lambda goal: goal.estimate_s)]


_TABLES = {
    1: "the fraction C of clients (MNIST 2NN and CNN)",
    2: "more local computation (MNIST CNN, Shakespeare LSTM)",
    3: "CIFAR-10: SGD, FedSGD, FedAvg",
    4: "more local computation (MNIST 2NN)",
}
for _number, _what in _TABLES.items():
    paper.add_command(_table_command(_number, _what))
_FIGURES = {
    2: "test accuracy by round (MNIST CNN, Shakespeare LSTM)",
    3: "training loss for large E (Shakespeare LSTM)",
    4: "test accuracy by round (CIFAR-10)",
    5: "next-word accuracy by round (posts)",
    6: "training loss by round (MNIST CNN)",
    7: "test accuracy by round (MNIST 2NN)",
    8: "training loss for large E (MNIST CNN)",
    9: "test accuracy by minibatch gradients (CIFAR-10)",
    10: "next-word accuracy by round, with E=5 (posts)",
}
paper.add_command(_figure1)
for _number, _what in _FIGURES.items():
    paper.add_command(_figure_command(_number, _what))
