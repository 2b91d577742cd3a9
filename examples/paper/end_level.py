"""Does FedAvg end higher than FedSGD (§3)? The 2NN on IID MNIST at C=0.1, run far beyond the target of the tables.

FedSGD is given four times as many rounds. Each run becomes a record of its curve as soon as it is over; what has one
is not run again.

usage: python examples/paper/end_level.py [--out docs/results/end_level.json]
"""

import argparse
import json
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from fedavg import Plan, Round, train
from fedavg.errors import Diverged
from fedavg.files import write_atomically

EVERY = 10
#: What is compared: E, B, rounds and rates.
SETTINGS: dict[str, dict[str, Any]] = {
    "FedAvg, E=1, B=10": {"E": 1, "B": 10, "rounds": 500, "rates": (0.1, 0.215)},
    "FedSGD": {"E": 1, "B": "inf", "rounds": 2000, "rates": (0.215, 0.464, 1.0)},
}


def accuracies(E: int, B: float | str, rounds: int, lr: float) -> list[float]:
    """The test accuracy after every tenth round; a run that diverges ends where it does."""
    plan = Plan(task="mnist-2nn", data="mnist", C=0.1, E=E, B=B, lr=lr, rounds=rounds, eval_every=EVERY, workers=1)
    curve: list[float] = []
    with suppress(Diverged):
        curve.extend(event.test["accuracy"] for event in train(plan) if isinstance(event, Round) and event.test)
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/end_level.json"))
    out = parser.parse_args().out
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    for name, setting in SETTINGS.items():
        for lr in setting["rates"]:
            if any((row["name"], row["lr"]) == (name, lr) for row in rows):
                continue
            curve = accuracies(setting["E"], setting["B"], setting["rounds"], lr)
            rows.append({"name": name, "lr": lr, "every": EVERY, "best": max(curve), "accuracy": curve})
            content = {"date": f"{date.today()}", "seed": 0, "rows": rows}
            write_atomically(out, (json.dumps(content) + "\n").encode())
            print(f"{name}, eta {lr:g}: best {max(curve):.4f} in {EVERY * len(curve)} rounds", flush=True)


if __name__ == "__main__":
    main()
