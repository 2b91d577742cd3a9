"""How much do rounds to a target hang on how often a model is tested? For curves that jump from round to round.

A curve crosses its target in the first round that lies above it, be it by a lucky cohort. Whoever tests every tenth
round sees only one lucky round in ten, and crosses later. The paper does not say how often it tested; we test
after every round. For the best rate of each measured cell that is asked for, and each seed, this prints the rounds to
the target had it been tested every so many rounds: the median over where one begins. Runs that stopped at the target
can not tell; `fedavg paper figure2 --rounds N` runs them on. It reads records and runs nothing.

usage: python examples/paper/seldom.py --only KEY=VALUE,... [--every 1,2,5,10,20] [--records docs/results/records]
"""

import argparse
from math import inf
from pathlib import Path
from statistics import median

from fedavg.paper.cells import CELLS
from fedavg.paper.choose import choose
from fedavg.paper.measure import results
from fedavg.paper.records import Record, Records
from fedavg.paper.tables import rounds_text
from fedavg.runlog.curves import rounds_to_target


def tested_every(run: Record, every: int, target: float) -> float:
    """Rounds to the target; infinity where it was not reached."""
    crossings = []
    for first in range(every):
        seen = [(at, score) for at, score in zip(run.rounds, run.accuracy, strict=True) if at % every == first]
        crossed = rounds_to_target(*zip(*seen, strict=True), target) if seen else None
        crossings.append(inf if crossed is None else crossed)
    return median(crossings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", required=True)
    parser.add_argument("--every", default="1,2,5,10,20")
    parser.add_argument("--records", type=Path, default=Path("docs/results/records"))
    options = parser.parse_args()
    records = Records(options.records)
    for result in results(choose(CELLS, options.only), records):
        cell = result.cell
        runs = [run for run in records.of(cell.setting.key) if run.plan.lr == result.eta]
        for run in sorted(runs, key=lambda run: run.plan.seed):
            print(f"{cell.name}, seed {run.plan.seed}, {run.rounds_run} rounds run; paper {cell.paper}:")
            for every in map(int, options.every.split(",")):
                rounds = tested_every(run, every, cell.target)
                print(f"  tested every {every}: {'not reached' if rounds == inf else rounds_text(rounds)}")


if __name__ == "__main__":
    main()
