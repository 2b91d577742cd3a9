"""Rounds to 97 % of each algorithm against FedAvg, under the paper's protocol: the table of docs/algorithms.md.

MNIST 2NN, pathological non-IID, C=0.1, E=1, B=10. For each setting of an algorithm the learning rate is searched on the
paper's grid of 10^(1/3) until the best is strictly inside (§3); the result of an algorithm is that of its best setting.
A run may take three times FedAvg's rounds. What has a record is not run again, and a stop loses nothing: the table
says which searches are not finished.

usage: python examples/results/algorithms.py [--only fedadam,scaffold] [--jobs 1] [--budget SECONDS] [--show]
"""

import argparse
import os
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from fedavg.paper.cells import NON_IID, TWO_NN, Cell, Setting
from fedavg.paper.execute import Campaign, Goal, Outlay, check_report
from fedavg.paper.measure import needs, result_of
from fedavg.paper.records import Record, Records
from fedavg.runlog.curves import monotone, rounds_to_target

RECORDS: Final = Path("docs/results/algorithms")
PAGE: Final = Path("docs/algorithms.md")
#: The table stands between these lines of the page.
MARKS: Final = ("<!-- results: written by examples/results/algorithms.py -->\n", "<!-- end of results -->\n")
TARGET: Final = 0.97
#: About three times what FedAvg takes at its best rate.
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


@dataclass(frozen=True)
class Finding:
    """The best run of a setting, its rounds to the target, and what is wanting in the search that it comes from."""

    text: str
    run: Record
    rounds: float | None
    wanting: str

    @property
    def order(self) -> tuple[float, float]:
        """First who reached the target first; if none did, who came nearest."""
        return self.rounds or inf, -max(self.run.accuracy, default=0.0)


def finding(text: str, records: Records) -> Finding | None:
    result = result_of(cell(text), records)
    wanting = "" if result.inside else "at the edge of the grid" if result.measured else "search not finished"
    crossings = [(run, rounds_to_target(run.rounds, run.accuracy, TARGET)) for run in result.runs]
    found = [Finding(text, run, crossed, wanting) for run, crossed in crossings]
    return min(found, key=lambda one: one.order, default=None)


def findings(name: str, records: Records) -> list[Finding]:
    """Of all settings of an algorithm that have runs, the best first."""
    found = [finding(text, records) for text in SETTINGS[name]]
    return sorted((one for one in found if one), key=lambda one: one.order)


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
    """One row for each setting that has runs, the best of its algorithm in bold."""
    fedavg = findings("fedavg", records)[0].rounds
    rows = ["| algorithm as the plan writes it | eta | rounds to 97 % | FedAvg's over its | best accuracy |",
            "|---|---|---|---|---|"]  # fmt: skip
    for name in SETTINGS:
        found = findings(name, records)
        rows += [_row(one, fedavg, "**" if one is found[0] and len(found) > 1 else "") for one in found]
    return "\n".join(rows) + "\n"


def _row(one: Finding, fedavg: float | None, bold: str) -> str:
    eta = f"{one.run.plan.lr:g}" + (f" ({one.wanting})" if one.wanting else "")
    rounds = f"{bold}{one.rounds:.0f}{bold}" if one.rounds else "not reached"
    ratio = f"{fedavg / one.rounds:.2f}" if fedavg and one.rounds else "–"
    accuracy = f"{max(one.run.accuracy, default=0.0):.4f} in {one.run.rounds_run}"
    return f"| {bold}`{one.text}`{bold} | {eta} | {rounds} | {ratio} | {accuracy} |"


def draw(records: Records, path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for index, name in enumerate(SETTINGS):
        for one in findings(name, records)[:1]:
            label = f"{one.text}, eta {one.run.plan.lr:g}"
            axes.plot(one.run.rounds, monotone(one.run.accuracy), color=f"C{index}", linewidth=1.4, label=label)
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
