"""How far from its target is a curve of ours where the paper's crossed it? For cells that take more rounds than there.

Near the end of a curve a small difference in accuracy is a large one in rounds. For each measured cell that took at
least RATIO times the paper's rounds, and each seed, this prints the highest accuracy that our best rate had reached by
the paper's rounds. It reads records and runs nothing.

usage: python examples/paper/levels.py [--ratio 1.3] [--records docs/results/records]
"""

import argparse
from pathlib import Path

from fedavg.campaign.records import Record, Records
from fedavg.paper.cells import CELLS
from fedavg.paper.measure import results


def best_by(run: Record, rounds: float) -> float:
    """The highest accuracy up to a round."""
    seen = zip(run.rounds, run.values, strict=True)
    return max((accuracy for at, accuracy in seen if at <= rounds), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratio", type=float, default=1.3)
    parser.add_argument("--records", type=Path, default=Path("docs/results/records"))
    options = parser.parse_args()
    records = Records(options.records)
    for result in results(CELLS, records):
        cell = result.cell
        if cell.paper is None or result.ratio is None or result.ratio < options.ratio:
            continue
        runs = [run for run in records.of(cell.setting.key) if run.plan.lr == result.eta]
        levels = ", ".join(f"{best_by(run, cell.paper):.2%}" for run in sorted(runs, key=lambda run: run.plan.seed))
        print(f"{cell.name}: {result.ours:.0f} rounds, paper {cell.paper:.0f}; by then {levels} of {cell.target:.0%}")


if __name__ == "__main__":
    main()
