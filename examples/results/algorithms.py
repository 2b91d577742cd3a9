"""Rounds, bytes and simulated time to 97 % of each algorithm under the paper's protocol: a table of docs/algorithms.md.

MNIST 2NN, pathological non-IID, C=0.1, E=1, B=10. For each setting of an algorithm the learning rate is searched on the
paper's grid of 10^(1/3) until the best is strictly inside (§3); the result of an algorithm is that of its best setting,
which is then run on other seeds too. A run may take three times FedAvg's rounds. What has a record is not run again,
and a stop loses nothing: the table says which searches are not finished.

usage: python examples/results/algorithms.py [--only fedadam,scaffold] [--seeds 3] [--jobs 1] [--budget S] [--show]
"""

import argparse
import os
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf
from pathlib import Path
from statistics import median
from typing import Final

import torch

from fedavg import seeds
from fedavg.algorithms import make_algorithm
from fedavg.algorithms.fedbuff import FedBuff
from fedavg.campaign.execute import Aim, Campaign, Need, Outlay, check_report
from fedavg.campaign.records import Record, Records
from fedavg.cohorts import cohort_size, sample_cohort
from fedavg.paper.cells import NON_IID, TWO_NN, Cell, Setting
from fedavg.paper.measure import needs, result_of
from fedavg.plan import Plan
from fedavg.runlog.curves import monotone, rounds_to_target
from fedavg.setup import population_of, resolve_data
from fedavg.types import Population

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
    "adaptive": ("adaptive:40000",),
}
#: FedBuff keeps C K clients at work and steps after 10 updates, as many as a round of the others has: half are stale.
#: Adaptive steps are for all clients at a time.
FRACTION: Final = {"fedbuff": 0.2, "adaptive": 1.0}
#: P of the 2NN.
NUMBERS: Final = 199_210


def cell(algorithm: str) -> Cell:
    C = FRACTION.get(algorithm.split(":")[0], 0.1)
    setting = Setting(TWO_NN, NON_IID, C=C, E=1, B=10.0, algorithm=algorithm)
    return Cell(0, setting, TARGET, None, ALLOWANCE, against="FedAvg")


@dataclass(frozen=True)
class Finding:
    """The best run of a setting, its rounds to the target, and what is wanting in the search that it comes from.

    `values`: the rounds of other seeds at the same rate as well, seed 0 first; None where the target was not reached.
    """

    text: str
    run: Record
    rounds: float | None
    wanting: str
    values: tuple[float | None, ...]

    @property
    def order(self) -> tuple[float, float]:
        """First who reached the target first; if none did, who came nearest."""
        return self.rounds or inf, -max(self.run.values, default=0.0)


def finding(text: str, records: Records) -> Finding | None:
    result = result_of(cell(text), records)
    wanting = "" if result.inside else "at the edge of the grid" if result.measured else "search not finished"
    crossings = [(run, rounds_to_target(run.rounds, run.values, TARGET)) for run in result.runs]
    found = [Finding(text, run, crossed, wanting, result.values or (crossed,)) for run, crossed in crossings]
    return min(found, key=lambda one: one.order, default=None)


def findings(name: str, records: Records) -> list[Finding]:
    """Of all settings of an algorithm that have runs, the best first."""
    found = [finding(text, records) for text in SETTINGS[name]]
    return sorted((one for one in found if one), key=lambda one: one.order)


def goals(names: list[str], seeds: int) -> list[Aim]:
    """The first setting of every algorithm, then the second, ...: a stop leaves something of all; at last the seeds."""
    command = "python examples/results/algorithms.py"
    ranked = sorted((rank, names.index(name), name, text) for name in names for rank, text in enumerate(SETTINGS[name]))
    searches = [
        Aim(text, f"{command} --only {name}", lambda records, text=text: needs(cell(text), records))
        for _, _, name, text in ranked
    ]
    others = [
        Aim(f"{name}, seeds", f"{command} --only {name}", lambda records, name=name: _seed_needs(name, records, seeds))
        for name in names
    ]
    return searches + others


def _seed_needs(name: str, records: Records, seeds: int) -> list[Need]:
    """The other seeds of the best setting, once all settings have been searched."""
    if any(needs(cell(text), records) for text in SETTINGS[name]):
        return []
    return needs(cell(findings(name, records)[0].text), records, seeds)


def measure(given: argparse.Namespace, records: Records) -> None:
    outlay = Outlay(given.jobs, given.budget, os.environ.get("FEDAVG_DATA"))
    todo = goals(given.only.split(","), given.seeds)
    check_report(Campaign(todo, records, Path("runs/algorithms"), outlay, print).run())


# The other two measures of cost, which follow from the plan.


def megabytes_up(plan: Plan) -> float:
    """What the clients of one round send, all together."""
    clients = 10 if "fedbuff" in plan.algorithm else round(100 * plan.C)
    return 4e-6 * NUMBERS * make_algorithm(plan.algorithm).vectors_up * clients


def clock(plan: Plan, rounds: int) -> list[float]:
    """The simulated time after each round, from 0: clients take |z| each, z ~ N(0, 1), as FedBuff's have it.

    A round of the others lasts as long as its slowest client. The time to send is left out.
    """
    clients = population_of(resolve_data(plan))
    buffered = isinstance(make_algorithm(plan.algorithm), FedBuff)
    return [0.0, *(_buffered_times if buffered else _waiting_times)(plan, clients, rounds)]


def _waiting_times(plan: Plan, clients: Population, rounds: int) -> list[float]:
    draws = (seeds.rng(plan.seed, t, seeds.NONE, "duration") for t in range(1, rounds + 1))
    return list(accumulate(abs(rng.standard_normal(cohort_size(plan.C, clients))).max() for rng in draws))


def _buffered_times(plan: Plan, clients: Population, rounds: int) -> list[float]:
    """FedBuff's own clock: who is at work when does not depend on the weights."""
    algorithm = make_algorithm(plan.algorithm)
    state, times = algorithm.initial(torch.zeros(1)), []
    for t in range(1, rounds + 1):
        rng = seeds.rng(plan.seed, t, seeds.NONE, "assign")
        state, _ = algorithm.assign(state, plan.work(t), sample_cohort(plan, clients, t), rng)
        times.append(float(state.slots["clock"]))
    return times


# What came out.


def table(records: Records) -> str:
    """One row for each setting that has runs, the best of its algorithm in bold."""
    fedavg = middle(findings("fedavg", records)[0])
    heads = ("algorithm as the plan writes it", "eta", "rounds to 97 %", "median of seeds", "FedAvg's over its",
             "MB up", "time", "best accuracy")  # fmt: skip
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in SETTINGS:
        found = findings(name, records)
        rows += [_row(one, fedavg, "**" if one is found[0] and len(found) > 1 else "") for one in found]
    return "\n".join(rows) + "\n"


def middle(one: Finding) -> float | None:
    """The median over seeds of the rounds to the target; None if that is never."""
    middle = median(inf if value is None else value for value in one.values)
    return middle if middle < inf else None


def _row(one: Finding, fedavg: float | None, bold: str) -> str:
    eta = f"{one.run.plan.lr:g}" + (f" ({one.wanting})" if one.wanting else "")
    cells = [f"{bold}`{one.text}`{bold}", eta, f"{bold}{one.rounds:.0f}{bold}" if one.rounds else "not reached"]
    rounds = middle(one)
    if rounds is None or fedavg is None:
        cells += ["–"] * 4
    else:
        time = clock(one.run.plan, ceil(rounds))[-1]
        cells += [_spread(one), f"{fedavg / rounds:.2f}", f"{rounds * megabytes_up(one.run.plan):,.0f}", f"{time:.0f}"]
    cells.append(f"{max(one.run.values, default=0.0):.4f} in {one.run.rounds_run}")
    return f"| {' | '.join(cells)} |"


def _spread(one: Finding) -> str:
    if len(one.values) == 1:
        return "one seed"
    low, high = (f(inf if value is None else value for value in one.values) for f in (min, max))
    return f"{middle(one):.0f} ({low:.0f} to {high:.0f})"


def draw(records: Records, path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for index, name in enumerate(SETTINGS):
        for one in findings(name, records)[:1]:
            label = f"{one.text}, eta {one.run.plan.lr:g}"
            style = {"color": f"C{index}", "linewidth": 1.3, "label": label}
            rounds, accuracy = one.run.rounds, monotone(one.run.values)
            times, megabytes = clock(one.run.plan, rounds[-1]), megabytes_up(one.run.plan)
            panels[0].plot(rounds, accuracy, **style)
            panels[1].plot([t * megabytes for t in rounds], accuracy, **style)
            panels[2].plot([times[t] for t in rounds], accuracy, **style)
    for axes, name in zip(panels, ("round of communication", "MB that clients sent", "simulated time"), strict=True):
        axes.axhline(TARGET, color="#888888", linewidth=0.8, linestyle=":")
        axes.set_xlabel(name)
        axes.grid(alpha=0.25)
    for axes in panels[1:]:
        axes.set_xscale("log")
        axes.set_xlim(left=axes.get_xlim()[1] / 1000)
    panels[0].set_ylim(0.85, 0.98)
    panels[0].set_ylabel("best test accuracy so far")
    figure.suptitle("MNIST 2NN, pathological non-IID, C=0.1, E=1, B=10", fontsize=10)
    figure.legend(*panels[0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=4)
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
    parser.add_argument("--seeds", type=int, default=3, help="seeds that the best setting of each is run on")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--budget", type=float, help="seconds after which no more is run")
    parser.add_argument("--show", action="store_true", help="only write the table and the figure from the records")
    given = parser.parse_args()
    records = Records(RECORDS)
    if not given.show:
        measure(given, records)
    draw(records, RECORDS / "rounds.svg")
    write_into_page(table(records))


if __name__ == "__main__":
    main()
