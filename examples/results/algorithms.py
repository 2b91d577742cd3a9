"""Rounds to 97 % of each algorithm against FedAvg, under the paper's protocol: the table of docs/algorithms.md.

MNIST 2NN, pathological non-IID, C=0.1, E=1, B=10. For each setting of an algorithm the learning rate is searched on the
paper's grid of 10^(1/3) until the best is strictly inside (§3); the result of an algorithm is that of its best setting.
A run may take three times FedAvg's rounds. What has a record is not run again, and a stop loses nothing.

usage: python examples/results/algorithms.py [--only fedadam,scaffold] [--jobs 1] [--budget SECONDS] [--show]
"""

import argparse
import os
from math import inf
from pathlib import Path
from typing import Final

from fedavg.paper.cells import NON_IID, TWO_NN, Cell, Setting
from fedavg.paper.execute import Campaign, Goal, Outlay, check_report
from fedavg.paper.measure import Result, needs, result_of
from fedavg.paper.records import Record, Records
from fedavg.runlog.curves import monotone

RECORDS: Final = Path("docs/results/algorithms")
PAGE: Final = Path("docs/algorithms.md")
#: The table stands between these lines of the page.
MARKS: Final = ("<!-- results: written by examples/results/algorithms.py -->\n", "<!-- end of results -->\n")
TARGET: Final = 0.97
#: Three times what FedAvg takes at its best rate.
ALLOWANCE: Final = 624

#: Algorithm -> the settings that are tried, as a plan writes them.
SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "fedavg": ("fedavg",),
    "scaffold": ("scaffold",),
    "fedavgm": ("fedavgm:0.9:lr=1", "fedavgm:0.9:lr=0.316", "fedavgm:0.9:lr=0.1"),
    "fedadam": ("fedadam:lr=0.01", "fedadam:lr=0.0316", "fedadam:lr=0.00316"),
    "fedyogi": ("fedyogi:lr=0.01", "fedyogi:lr=0.0316", "fedyogi:lr=0.00316"),
    "fedadagrad": ("fedadagrad:lr=0.0316", "fedadagrad:lr=0.1", "fedadagrad:lr=0.01"),
    "fedprox": ("fedprox:0.01", "fedprox:0.1", "fedprox:0.001"),
    "fednova": ("fednova",),
    "fedbuff": ("fedbuff:10",),
}
#: FedBuff keeps C K clients at work and steps after 10 updates, as many as a round of the others has: half are stale.
FRACTION: Final = {"fedbuff": 0.2}


def cell(algorithm: str) -> Cell:
    C = FRACTION.get(algorithm.split(":")[0], 0.1)
    setting = Setting(TWO_NN, NON_IID, C=C, E=1, B=10.0, algorithm=algorithm)
    return Cell(0, setting, TARGET, None, ALLOWANCE, against="FedAvg")


def best(name: str, records: Records) -> Result | None:
    """The setting that reached the target first; if none did, the one of the highest accuracy."""
    measured = [result for text in SETTINGS[name] if (result := result_of(cell(text), records)).measured]
    return min(measured, key=lambda r: (r.ours or inf, -(r.best_accuracy or 0)), default=None)


def goals(names: list[str]) -> list[Goal]:
    """The first setting of every algorithm, then the second of each, ...: a stop leaves something of all."""
    command = "python examples/results/algorithms.py"
    ranked = sorted((rank, names.index(name), name, text) for name in names for rank, text in enumerate(SETTINGS[name]))
    return [
        Goal(text, f"{command} --only {name}", lambda records, text=text: needs(cell(text), records))
        for _, _, name, text in ranked
    ]


def measure(names: list[str], records: Records, jobs: int, budget: float | None) -> None:
    outlay = Outlay(jobs, budget, os.environ.get("FEDAVG_DATA"))
    check_report(Campaign(goals(names), records, Path("runs/algorithms"), outlay, print).run())


# What came out.


def table(records: Records) -> str:
    """One row for each setting that was measured, the best of its algorithm in bold."""
    fedavg = best("fedavg", records)
    rows = ["| algorithm as the plan writes it | eta | rounds to 97 % | against FedAvg | best accuracy, rounds run |",
            "|---|---|---|---|---|"]  # fmt: skip
    for name, texts in SETTINGS.items():
        chosen = best(name, records)
        for text in texts:
            result = result_of(cell(text), records)
            if result.measured:
                bold = "**" if chosen and len(texts) > 1 and result.cell == chosen.cell else ""
                rows.append(_row(text, result, fedavg.ours if fedavg else None, bold))
    return "\n".join(rows) + "\n"


def _row(text: str, result: Result, fedavg: float | None, bold: str) -> str:
    if result.eta is None:
        return f"| `{text}` | – | every rate diverged | – | – |"
    eta = f"{result.eta:g}" + ("" if result.inside else " (edge)")
    if result.ours is None:
        return f"| `{text}` | {eta} | not reached | – | {result.best_accuracy:.4f}, {result.rounds_run} |"
    ratio = f"{fedavg / result.ours:.2f} x" if fedavg else "–"
    accuracy = f"{result.best_accuracy:.4f}, {result.rounds_run}"
    return f"| {bold}`{text}`{bold} | {eta} | {bold}{result.ours:.0f}{bold} | {ratio} | {accuracy} |"


def draw(records: Records, path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for index, name in enumerate(SETTINGS):
        result = best(name, records)
        if result and result.eta is not None:
            run = _best_run(result)
            label = f"{run.plan.algorithm}, eta {run.plan.lr:g}"
            axes.plot(run.rounds, monotone(run.accuracy), color=f"C{index}", linewidth=1.4, label=label)
    axes.axhline(TARGET, color="#888888", linewidth=0.8, linestyle=":")
    axes.set_ylim(0.85, 0.98)
    axes.set_xlabel("round of communication")
    axes.set_ylabel("best test accuracy so far")
    axes.set_title("MNIST 2NN, pathological non-IID, C=0.1, E=1, B=10", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "algorithms"}):  # the same records give the same file
        figure.savefig(path, metadata={"Date": None})


def _best_run(result: Result) -> Record:
    return next(run for run in result.runs if run.plan.lr == result.eta)


def write_into_page(text: str) -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    _, after = rest.split(MARKS[1])
    PAGE.write_text(before + MARKS[0] + text + MARKS[1] + after, encoding="utf-8")
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SETTINGS), help="algorithms, with commas")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--budget", type=float, help="seconds after which no more is run")
    parser.add_argument("--show", action="store_true", help="only write the table and the figure from the records")
    given = parser.parse_args()
    records = Records(RECORDS)
    if not given.show:
        measure(given.only.split(","), records, given.jobs, given.budget)
    draw(records, RECORDS / "rounds.svg")
    write_into_page(table(records))


if __name__ == "__main__":
    main()
