"""Why our LSTM takes half as many rounds again as the paper's (Table 2, non-IID, E=5, B=10): what counts as predicted?

A line has 42 characters, so one prediction a line, more or less, moves the accuracy by a percent, and near the target
the curve is flat. We predict each character of a line from a begin token on, the newline being the last, and nothing
after it. The paper's numbers of parameters and of characters fit two other readings just as well:
  end token      after the newline the model is to predict that the line has ended, which is never wrong;
  no first one   a line is predicted from its first character on, which nothing comes before.
The second leaves the training as it is but for that one prediction, the first adds one that is learned at once. For the
first character a model has nothing to go by and always says the same one: it is right as often as the commonest is met.
So the accuracy that either reading would have given follows from ours. This prints the rounds to the target by each. It
reads the record and the text, and runs nothing.

usage: python examples/paper/line_ends.py [--records docs/results/records]
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from fedavg.campaign.records import Record, Records
from fedavg.data import load
from fedavg.data.shakespeare import BEGIN, facts
from fedavg.paper.cells import CELLS, Cell
from fedavg.paper.measure import result_of
from fedavg.runlog.curves import rounds_to_target
from fedavg.types import Examples


def readings(characters: int, lines: int, first: float) -> dict[str, tuple[float, float]]:
    """Name -> (scale, shift): the reading's accuracy is scale * ours + shift. `first`: of first characters, right."""
    return {
        "as we count": (1.0, 0.0),
        "end token": (characters / (characters + lines), lines / (characters + lines)),
        "no first one": (characters / (characters - lines), -first * lines / (characters - lines)),
    }


def read_lines() -> tuple[int, int, float]:
    """Of the test set: characters, lines, and how often the commonest first character of the training set is met."""
    data = load("shakespeare", "natural")
    commonest = torch.cat([first_characters(data.client(k)) for k in range(len(data))]).mode().values
    tested = first_characters(data.test)
    return facts(data)["test_characters"], len(tested), float((tested == commonest).float().mean())


def first_characters(examples: Examples) -> Tensor:
    return examples.y[examples.x[:, 0] == BEGIN, 0]


def best_run(cell: Cell, records: Records) -> Record:
    eta = result_of(cell, records).eta
    return next(run for run in records.of(cell.setting.key) if run.plan.lr == eta)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=Path("docs/results/records"))
    options = parser.parse_args()
    records, counts = Records(options.records), read_lines()
    print("test set: {:,} characters, {:,} lines, {:.1%} with the commonest first character".format(*counts))
    for cell in CELLS:
        if cell.model != "lstm" or result_of(cell, records).ours is None:
            continue
        run = best_run(cell, records)
        for name, (scale, shift) in readings(*counts).items():
            rounds = rounds_to_target(run.rounds, run.values, (cell.target - shift) / scale)
            print(f"{cell.name}, {name}: {rounds:.1f} rounds, paper {cell.paper}")


if __name__ == "__main__":
    main()
