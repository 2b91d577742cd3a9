"""Tables 1 to 4 in the paper's arrangement, ours beside the paper's: for the terminal, as Markdown and as JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from typing import TYPE_CHECKING, Any, Final

from fedavg.campaign.duration import duration
from fedavg.paper.cells import CELLS, IID, NON_IID, Cell, baseline, with_unit_pixels
from fedavg.paper.measure import MEASURED, NOT_RUN, RUNNING, MeasuredCell

if TYPE_CHECKING:
    from rich.table import Table

TITLES: Final = {
    1: "Table 1: rounds to 97 % (2NN, E=1) and 99 % (CNN, E=5) against C; speed-up against C=0",
    2: "Table 2: rounds to 99 % (CNN) and 54 % (LSTM), C=0.1; speed-up against FedSGD",
    3: "Table 3: CIFAR-10, rounds to 80, 82 and 85 %; speed-up against SGD",
    4: "Table 4: rounds to 97 % (2NN), C=0.1; speed-up against FedSGD",
}
BLANK: Final = "–"
HEADER: Final = """# The paper's tables

Rounds of communication until the test accuracy reaches the target, ours and the paper's (McMahan et al. 2017, §3 and
appendix A), by the paper's protocol: the learning rate is searched on the grid of 10^(1/3) until the best one is
strictly inside; curves are made monotone; the crossing is interpolated between evaluated rounds. Every number is made
from the curves under `records/`, by `fedavg paper render`. "–" is the paper's: not reached in its allowed time.
"""


@dataclass(frozen=True)
class TableLayout:
    """How cells become a table: the names of a row, and the name of the column."""

    heads: tuple[str, ...]
    row: Callable[[Cell], tuple[str, ...]]
    column: Callable[[Cell], str]


def _size(B: float) -> str:
    return "∞" if isinf(B) else f"{B:g}"


def _partition(cell: Cell) -> str:
    return {IID: "IID", NON_IID: "non-IID"}[cell.setting.partition]


def _by_epochs(cell: Cell) -> tuple[str, ...]:
    s = cell.setting
    name = "FedSGD" if s.algorithm == "fedsgd" else "FedAvg"
    return (f"{cell.model.upper()} {name}", str(s.E), _size(s.B), f"{float(f'{s.updates:.3g}'):g}")


LAYOUTS: Final = {
    1: TableLayout(
        ("", "C"),
        lambda cell: (cell.model.upper(), f"{cell.setting.C:.1f}"),
        lambda cell: f"{_partition(cell)} B={_size(cell.setting.B)}",
    ),
    2: TableLayout(("", "E", "B", "u"), _by_epochs, _partition),
    3: TableLayout(
        ("",),
        lambda cell: ({"sgd": "SGD", "fedsgd": "FedSGD", "fedavg": "FedAvg"}[cell.setting.algorithm],),
        lambda cell: f"{cell.target:.0%}",
    ),
    4: TableLayout(("", "E", "B", "u"), _by_epochs, _partition),
}

TableGrid = list[tuple[tuple[str, ...], dict[str, MeasuredCell]]]


def grid(table: int, results: Sequence[MeasuredCell]) -> TableGrid:
    """Rows of the table with their results by column, in the paper's order; only rows that have any."""
    layout = LAYOUTS[table]
    rows: dict[tuple[str, ...], dict[str, MeasuredCell]] = {}
    for result in results:
        rows.setdefault(layout.row(result.cell), {})[layout.column(result.cell)] = result
    return list(rows.items())


def columns(table: int) -> list[str]:
    return list(dict.fromkeys(LAYOUTS[table].column(cell) for cell in CELLS if cell.table == table))


# One cell as text.


def rounds_text(value: float | None) -> str:
    if value is None:
        return BLANK
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def ours_text(result: MeasuredCell) -> str:
    """The measured rounds, with their range over seeds; or why there are none."""
    if not result.measured:
        return result.status
    if result.ours is None:
        return f"not reached in {result.rounds_run} rounds (best {result.best_accuracy or 0:.2%})"
    reached = [value for value in result.values if value is not None]
    if len(result.values) == 1:
        return rounds_text(result.ours)
    last = rounds_text(max(reached)) if len(reached) == len(result.values) else "never"
    return f"{rounds_text(result.ours)} [{rounds_text(min(reached))}, {last}]"


def paper_text(cell: Cell) -> str:
    return BLANK if cell.paper is None else f"{cell.paper:g}"


def speedups(result: MeasuredCell, all_results: Mapping[Cell, MeasuredCell]) -> tuple[float | None, float | None]:
    """The paper's speed-up and ours against the row that the paper uses; None if one of the two numbers is missing."""
    base = baseline(result.cell)
    if base == result.cell:
        return None, None
    ours = all_results[base].ours if base in all_results else None
    return _quotient(base.paper, result.cell.paper), _quotient(ours, result.ours)


def _unit_result(result: MeasuredCell, all_results: Mapping[Cell, MeasuredCell]) -> MeasuredCell | None:
    """The same cell with pixels in [0, 1], if it is measured in both ways."""
    unit = with_unit_pixels(result.cell)
    return all_results[unit] if unit else None


def _quotient(base: float | None, value: float | None) -> float | None:
    return base / value if base is not None and value else None


def _times(speedup: float | None) -> str:
    return BLANK if speedup is None else f"{speedup:.1f}x"


def cell_text(result: MeasuredCell, all_results: Mapping[Cell, MeasuredCell]) -> tuple[str, str]:
    """The paper's number and ours, each with its speed-up."""
    paper, ours = paper_text(result.cell), ours_text(result)
    paper_speed, our_speed = speedups(result, all_results)
    return (
        f"{paper} ({_times(paper_speed)})" if paper_speed is not None else paper,
        f"{ours} ({_times(our_speed)})" if our_speed is not None else ours,
    )


# The whole table.


def terminal_table(table: int, results: Sequence[MeasuredCell], all_results: Mapping[Cell, MeasuredCell]) -> "Table":
    from rich import box
    from rich.table import Table as RichTable

    shown = RichTable(title=TITLES[table], box=box.SIMPLE_HEAD, title_justify="left")
    for head in LAYOUTS[table].heads:
        shown.add_column(head)
    for column in columns(table):
        shown.add_column(column, justify="right")
    for names, by_column in grid(table, results):
        shown.add_row(*names, *(_terminal_cell(by_column.get(c), all_results) for c in columns(table)))
    return shown


def _terminal_cell(result: MeasuredCell | None, all_results: Mapping[Cell, MeasuredCell]) -> str:
    if result is None:
        return ""
    paper, ours = cell_text(result, all_results)
    rate = f"\nlr {result.eta:g}" if result.eta is not None else ""
    ratio = f", {result.ratio:.2f} of the paper's" if result.ratio is not None else ""
    unit = _unit_result(result, all_results)
    beside = f"\npixels in [0, 1]: {cell_text(unit, all_results)[1]}" if unit else ""
    return f"paper {paper}\nours {ours}{rate}{ratio}{beside}\n"


def markdown(
    table: int, results: Sequence[MeasuredCell], all_results: Mapping[Cell, MeasuredCell], costs: Mapping[Cell, float]
) -> str:
    """The table in the paper's arrangement, then all that is known about each cell, then what was not run."""
    heads = [*LAYOUTS[table].heads, *columns(table)]
    two_ways = any(_unit_result(result, all_results) for result in results)
    legend = "Ours / the paper's, with the speed-up in brackets." + (f" {_TWO_WAYS}" if two_ways else "")
    lines = [f"## {TITLES[table]}", "", legend, "", *_rows([heads])]
    lines += ["|" + "---|" * len(heads)]
    for names, by_column in grid(table, results):
        lines += _rows([[*names, *(_markdown_cell(by_column.get(c), all_results) for c in columns(table))]])
    done = [result for result in results if result.measured]
    if done:
        lines += ["", *_details(done, all_results)]
    left = [result for result in results if not result.measured]
    if left:
        lines += ["", "Not run:", ""]
        lines += [f"- `{r.cell.command}` (about {duration(costs[r.cell])} on one core)" for r in left]
    return "\n".join(lines) + "\n"


def _markdown_cell(result: MeasuredCell | None, all_results: Mapping[Cell, MeasuredCell]) -> str:
    if result is None:
        return ""
    paper, ours = cell_text(result, all_results)
    unit = _unit_result(result, all_results)
    beside = f"; {cell_text(unit, all_results)[1]}" if unit else ""
    return f"{f'**{ours}**' if result.measured else ours} / {paper}{beside}"


_TWO_WAYS: Final = (
    "The 2NN is trained on pixels in [-0.5, 0.5]; what it takes with pixels in [0, 1] stands after the semicolon."
)
_DETAILS: Final = (
    "cell", "paper", "ours", "pixels in [0, 1]", "ratio", "paper's speed-up", "our speed-up", "eta", "rates tried",
    "seeds", "date", "command",
)  # fmt: skip


def _details(results: Sequence[MeasuredCell], all_results: Mapping[Cell, MeasuredCell]) -> list[str]:
    return _rows([_DETAILS, ["---"] * len(_DETAILS), *(_detail(result, all_results) for result in results)])


def _detail(result: MeasuredCell, all_results: Mapping[Cell, MeasuredCell]) -> list[str]:
    unit = _unit_result(result, all_results)
    return [
        result.cell.choice,
        paper_text(result.cell),
        ours_text(result),
        ours_text(unit) if unit else "",
        f"{result.ratio:.2f}" if result.ratio is not None else BLANK,
        *(_times(speedup) for speedup in speedups(result, all_results)),
        eta_text(result),
        ", ".join(f"{eta:g}" for eta in sorted({run.plan.eta for run in result.runs})),
        ", ".join(map(str, result.seeds)),
        result.date,
        f"`{result.cell.command}`",
    ]


def eta_text(result: MeasuredCell) -> str:
    if result.eta is None:
        return BLANK
    return f"{result.eta:g}" if result.inside else f"{result.eta:g} (at the edge of the grid)"


def _rows(rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in rows]


def as_json(result: MeasuredCell, all_results: Mapping[Cell, MeasuredCell], estimated_s: float) -> dict[str, Any]:
    cell, s = result.cell, result.cell.setting
    paper_speed, our_speed = speedups(result, all_results)
    unit = _unit_result(result, all_results)
    return {
        "table": cell.table,
        "model": cell.model,
        "partition": s.partition,
        "C": s.C,
        "E": s.E,
        "B": "inf" if isinf(s.B) else int(s.B),
        "status": result.status,
        "paper": cell.paper,
        "ours": result.ours,
        "ours_unit_pixels": unit.ours if unit else None,
        "eta": result.eta,
        "algorithm": s.algorithm,
        "target": cell.target,
        "u": round(s.updates, 1),
        "ratio": result.ratio,
        "speedup_paper": paper_speed,
        "speedup_ours": our_speed,
        "values": list(result.values),
        "seeds": list(result.seeds),
        "inside": result.inside if result.eta is not None else None,
        "best_accuracy": result.best_accuracy,
        "rounds_run": result.rounds_run,
        "rounds_allowed": cell.allowance,
        "eval_every": s.eval_every,
        "rates_tried": sorted({run.plan.eta for run in result.runs}),
        "records": [run.digest for run in result.runs],
        "date": result.date or None,
        "estimated_s": 0.0 if result.measured else round(estimated_s, 1),
        "command": cell.command,
    }


def status_table(all_results: Mapping[Cell, MeasuredCell], costs: Mapping[Cell, float]) -> "Table":
    """Every cell of the paper on a line."""
    from rich import box
    from rich.table import Table as RichTable

    results = [all_results[cell] for cell in CELLS]
    counts = {status: sum(result.status == status for result in results) for status in (MEASURED, RUNNING, NOT_RUN)}
    title = ", ".join(f"{count} {status}" for status, count in counts.items()) + f" of {len(results)} cells"
    shown = RichTable(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    names = ("table", "model", "algorithm", "partition", "C", "E", "B", "target")
    for head in (*names, "status", "paper", "ours", "eta", "pixels in [0, 1]"):
        shown.add_column(head)
    shown.add_column("time left on one core", justify="right")
    for result in results:
        unit = _unit_result(result, all_results)
        left = "" if result.measured else duration(costs[result.cell])
        shown.add_row(
            *(result.cell.labels[key] for key in names),
            result.status,
            paper_text(result.cell),
            ours_text(result) if result.measured else "",
            eta_text(result) if result.eta is not None else "",
            ours_text(unit) if unit and unit.measured else "",
            left,
        )
    return shown
