"""Figures 2 to 10 in the paper's arrangement (§3, appendix A), drawn from records alone; and the runs that they need.

A figure has panels, a panel has lines. A line of a learning curve is the best rate at each point: the upper envelope of
all rates on record (§3). Only lines with records are drawn, and missing ones are reported.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isinf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fedavg.campaign.execute import Need
from fedavg.campaign.records import CAP, Record, Records
from fedavg.errors import FedAvgError
from fedavg.paper.cells import (
    ALL_CELLS,
    CELLS,
    CIFAR,
    CIFAR_SETTINGS,
    CNN,
    IID,
    LSTM,
    NON_IID,
    POSTS,
    TWO_NN,
    TWO_NN_UNIT,
    Cell,
    PaperModel,
    Setting,
    federated,
    per_round,
)
from fedavg.paper.measure import result_of
from fedavg.paper.search import envelope, rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FigureCurve = tuple[list[float], list[float]]
#: How the records of a line become a curve.
Reading = Callable[[Sequence[Record]], FigureCurve]


@dataclass(frozen=True)
class Line:
    """One curve: the records of a setting. `rates` are the rates to run if no table's search chooses them; `fixed`: the
    curve is of these rates only. `per_round`: what a round counts on the x axis; 1 if the axis is rounds.
    """

    label: str
    setting: Setting
    cell: Cell | None = None
    rates: tuple[float, ...] = ()
    fixed: bool = False
    per_round: float = 1.0

    @property
    def labels(self) -> dict[str, str]:
        return self.setting.labels


@dataclass(frozen=True)
class Panel:
    title: str
    lines: tuple[Line, ...]
    targets: tuple[float, ...] = ()
    ylim: tuple[float, float] | None = None


@dataclass(frozen=True)
class Chart:
    """A figure of the paper. `rounds`: how long its own runs are, if no target ends them."""

    number: int
    title: str
    panels: tuple[Panel, ...]
    reading: Reading
    xlabel: str = "communication rounds"
    ylabel: str = "test accuracy"
    log: bool = False
    rounds: int = 0


@dataclass(frozen=True)
class Drawn:
    """The outcome of a figure: its files, and the lines that have no record yet."""

    files: tuple[Path, ...] = ()
    missing: tuple[str, ...] = field(default=())


# How records become curves.


def best_accuracy(runs: Sequence[Record]) -> FigureCurve:
    rounds, values = envelope((run.rounds, run.values) for run in runs)
    return [float(r) for r in rounds], values


def accuracy(runs: Sequence[Record]) -> FigureCurve:
    """The curve of the best run as measured, not made monotone: Figure 10 shows its scatter."""
    best = max(runs, key=lambda run: (max(run.values, default=0.0), run.rounds_run))
    return [float(r) for r in best.rounds], list(best.values)


def sample_loss(runs: Sequence[Record]) -> FigureCurve:
    """The loss of the shared model on a fixed sample of the training set, for the run with the lowest."""
    told = [run for run in runs if run.sample_loss]
    if not told:
        return [], []
    best = min(told, key=lambda run: min(run.sample_loss))
    return [float(r) for r in best.sample_rounds], list(best.sample_loss)


# The figures.


def _label(setting: Setting) -> str:
    return f"B={'∞' if isinf(setting.B) else f'{setting.B:g}'} E={setting.E}"


def _of_table(table: int, model: PaperModel, partition: str) -> tuple[Line, ...]:
    cells = [c for c in ALL_CELLS if (c.table, c.setting.model, c.setting.partition) == (table, model, partition)]
    return tuple(Line(_label(cell.setting), cell.setting, cell) for cell in cells)


def _by_partition(
    table: int, model: PaperModel, names: tuple[str, str], target: float, low: float
) -> tuple[Panel, ...]:
    return tuple(
        Panel(name, _of_table(table, model, partition), (target,), (low, 1.0 if target > 0.9 else 0.6))
        for name, partition in zip(names, (IID, NON_IID), strict=True)
    )


def _large_epochs(model: PaperModel, epochs: Sequence[int], eta: float, names: tuple[str, str]) -> tuple[Panel, ...]:
    """Figures 3 and 8: B=10, C=0.1 and one rate for all E."""
    return tuple(
        Panel(name, tuple(_large(federated(model, partition, 0.1, E, 10.0), eta) for E in epochs))
        for name, partition in zip(names, (IID, NON_IID), strict=True)
    )


def _large(setting: Setting, eta: float) -> Line:
    return Line(f"E={setting.E}", setting, rates=(eta,), fixed=True)


def _cifar_lines() -> tuple[Line, ...]:
    cells = {c.setting.algorithm: c for c in CELLS if c.table == 3 and c.target == 0.80}
    return (
        Line("FedAvg, E=5, B=50", CIFAR_SETTINGS["fedavg"], cells["fedavg"]),
        Line("FedSGD", CIFAR_SETTINGS["fedsgd"], cells["fedsgd"]),
    )


def _cifar_by_gradients() -> tuple[Line, ...]:
    """Figure 9: minibatch gradients of B=50, over all clients of a round."""
    sgd = Setting(CIFAR, IID, C=0.0, E=1, B=50.0, algorithm="sgd", eval_every=100)
    lines = [Line("SGD", sgd, rates=(rate(-6),))]
    for C in (0.0, 0.1, 1.0):
        for E in (1, 5):
            setting = Setting(CIFAR, IID, C, E, 50.0, lr_decay=per_round(0.99, C), eval_every=5 if C == 0 else 1)
            gradients = setting.cohort * setting.updates
            lines.append(Line(f"C={C:g} E={E}", setting, rates=(rate(-4),), per_round=gradients))
    return tuple(lines)


def _posts(E: int, B: float) -> Setting:
    """200 clients a round, as in the paper (§3, large-scale LSTM)."""
    return Setting(POSTS, NON_IID, C=200 / POSTS.clients, E=E, B=B, eval_every=20)


#: The paper's rates for its own posts; on other posts other rates may be better: `--lr`.
_FEDAVG_POSTS: Final = Line("FedAvg, E=1, B=8", _posts(1, 8.0), rates=(9.0,))
_FEDSGD_POSTS: Final = Line("FedSGD", _posts(1, inf), rates=(18.0,))

CHARTS: Final[dict[int, Chart]] = {
    chart.number: chart
    for chart in (
        Chart(
            2,
            "Test accuracy by round, C=0.1",
            (
                *_by_partition(2, CNN, ("MNIST CNN, IID", "MNIST CNN, non-IID"), 0.99, 0.95),
                *_by_partition(2, LSTM, ("Shakespeare LSTM, IID", "Shakespeare LSTM, by role"), 0.54, 0.2),
            ),
            best_accuracy,
        ),
        Chart(
            3,
            "Training loss for large E: Shakespeare LSTM, B=10, C=0.1, eta=1.47",
            _large_epochs(LSTM, (1, 5, 10, 50, 100, 200), rate(1), ("IID", "by role")),
            sample_loss,
            ylabel="loss on a sample of the training set",
            rounds=40,
        ),
        Chart(
            4,
            "Test accuracy by round: CIFAR-10, C=0.1",
            (Panel("CIFAR-10", _cifar_lines(), (0.80, 0.82, 0.85)),),
            best_accuracy,
        ),
        Chart(
            5,
            "Next-word accuracy by round: posts, 200 clients a round",
            (Panel("posts by author", (_FEDAVG_POSTS, _FEDSGD_POSTS), (0.105,)),),
            best_accuracy,
            rounds=200,
        ),
        Chart(
            6,
            "Training loss by round: MNIST CNN, C=0.1",
            tuple(
                Panel(name, _of_table(2, CNN, partition))
                for name, partition in (("MNIST CNN, IID", IID), ("MNIST CNN, non-IID", NON_IID))
            ),
            sample_loss,
            ylabel="loss on a sample of the training set",
            log=True,
        ),
        Chart(
            7,
            "Test accuracy by round: MNIST 2NN, C=0.1",
            (
                *_by_partition(4, TWO_NN, ("MNIST 2NN, IID", "MNIST 2NN, non-IID"), 0.97, 0.9),
                *_by_partition(4, TWO_NN_UNIT, ("IID, pixels in [0, 1]", "non-IID, pixels in [0, 1]"), 0.97, 0.9),
            ),
            best_accuracy,
        ),
        Chart(
            8,
            "Training loss for large E: MNIST CNN, B=10, C=0.1, eta=0.1",
            _large_epochs(CNN, (1, 5, 10, 20, 50, 100, 200), rate(-6), ("IID", "non-IID")),
            sample_loss,
            ylabel="loss on a sample of the training set",
            log=True,
            rounds=50,
        ),
        Chart(
            9,
            "Test accuracy by minibatch gradients: CIFAR-10, B=50",
            (Panel("CIFAR-10", _cifar_by_gradients()),),
            best_accuracy,
            xlabel="minibatch gradients, over all clients",
            rounds=100,
        ),
        Chart(
            10,
            "Next-word accuracy as measured: posts, 200 clients a round",
            (
                Panel(
                    "posts by author",
                    (_FEDAVG_POSTS, Line("FedAvg, E=5, B=8", _posts(5, 8.0), rates=(9.0,)), _FEDSGD_POSTS),
                    (0.105,),
                ),
            ),
            accuracy,
            rounds=200,
        ),
    )
}


def lines(chart: Chart) -> Iterator[tuple[Panel, Line]]:
    for panel in chart.panels:
        for line in panel.lines:
            yield panel, line


def runs_of(line: Line, records: Records) -> list[Record]:
    """The line's runs on seed 0."""
    runs = [run for run in records.of(line.setting.key) if run.plan.seed == 0]
    return [run for run in runs if run.plan.eta in line.rates] if line.fixed else runs


def line_needs(line: Line, rounds: int, records: Records) -> list[Need]:
    """What is missing of a line: its rates, or the best one of its cell's search, up to `rounds` (0: no more)."""
    rates = line.rates if rounds else ()
    if line.cell and rounds:
        eta = result_of(line.cell, records).eta
        rates = (eta,) if eta is not None else ()
    plans = [line.setting.plan(eta) for eta in rates]
    return [
        Need(plan, None, rounds, CAP, f"{rounds} rounds were asked for", line.setting.model.train_sample)
        for plan in plans
        if not _reaches(records.find(plan), rounds - rounds % line.setting.eval_every)
    ]


def _reaches(run: Record | None, rounds: int) -> bool:
    return run is not None and (run.diverged or run.rounds_run >= rounds)


def with_rates(chart: Chart, rates: Sequence[float]) -> Chart:
    """The same figure with other rates for the lines that have their own rates."""
    if not rates:
        return chart
    panels = tuple(
        replace(p, lines=tuple(replace(line, rates=tuple(rates)) if line.rates else line for line in p.lines))
        for p in chart.panels
    )
    return replace(chart, panels=panels)


def missing(chart: Chart, records: Records) -> tuple[str, ...]:
    return tuple(
        f"{panel.title}: {line.label}"
        for panel, line in lines(chart)
        if not (runs := runs_of(line, records)) or not chart.reading(runs)[0]
    )


# Drawing.


def draw(chart: Chart, records: Records, folder: Path) -> Drawn:
    """figureN.png and .svg in the folder, if any line has records."""
    absent = missing(chart, records)
    if len(absent) == len(list(lines(chart))):
        return Drawn(missing=absent)
    figure = new_figure(f"Figure {chart.number}. {chart.title}", len(chart.panels))
    for panel, axes in zip(chart.panels, grid_of(figure, len(chart.panels)), strict=True):
        _draw_panel(chart, panel, axes, records)
    return Drawn(save_figure(figure, chart.number, folder), absent)


def _draw_panel(chart: Chart, panel: Panel, axes: "Axes", records: Records) -> None:
    axes.set_title(panel.title, fontsize=10)
    top = 0.0
    for index, line in enumerate(panel.lines):
        runs = runs_of(line, records)
        x, y = chart.reading(runs) if runs else ([], [])
        if x:
            style = "--" if isinf(line.setting.B) else "-"
            points = [value * line.per_round for value in x]
            axes.plot(points, y, style, color=f"C{index}", linewidth=1.4, label=line.label)
            top = max(top, *y)
    if not axes.lines:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color="#888888")
        axes.set(xticks=[], yticks=[])
        return
    for target in panel.targets:
        axes.axhline(target, color="#888888", linewidth=0.8, linestyle=":")
    if panel.ylim and top > panel.ylim[0]:
        axes.set_ylim(panel.ylim[0], max(panel.ylim[1], top))
    if chart.log:
        axes.set_yscale("log")
    axes.set_xlabel(chart.xlabel, fontsize=9)
    axes.set_ylabel(chart.ylabel, fontsize=9)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)


def new_figure(title: str, panels: int) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise FedAvgError("figures need matplotlib, which is not installed: pip install 'fedavg[plots]'") from None
    rows = -(-panels // 2)
    figure = Figure(figsize=(5.6 * min(panels, 2) + 0.4, 3.9 * rows), layout="constrained")
    figure.suptitle(title, fontsize=11, wrap=True)
    return figure


def grid_of(figure: "Figure", panels: int) -> list["Axes"]:
    rows, across = -(-panels // 2), min(panels, 2)
    return [figure.add_subplot(rows, across, index + 1) for index in range(panels)]


def save_figure(figure: "Figure", number: int, folder: Path) -> tuple[Path, ...]:
    from matplotlib import rc_context

    folder.mkdir(parents=True, exist_ok=True)
    files = tuple(folder / f"figure{number}.{kind}" for kind in ("png", "svg"))
    figure.savefig(files[0], dpi=130)
    with rc_context({"svg.hashsalt": f"figure{number}"}):  # the same records give the same file
        figure.savefig(files[1], metadata={"Date": None})
    return files
