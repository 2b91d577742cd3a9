"""DP-FedAvg on MNIST with the 2NN: what privacy costs in accuracy, with a thousand clients.

usage: python examples/privacy/dp_mnist.py [--rounds 60] [--out docs/results/privacy.json]
"""

import argparse
import json
from datetime import date
from pathlib import Path

from fedavg import Plan, run

#: 1,000 clients with 60 images each, a fifth of them by Poisson sampling in every round.
COMMON = {"task": "mnist-2nn", "data": "mnist", "partition": "iid", "clients": 1000, "C": 0.2, "E": 1, "B": 10,
          "lr": 0.1, "sampling": "poisson", "dp_delta": 1e-4, "eval_every": 10}  # fmt: skip
RUNS = {
    "no privacy": ("weigh:equal",),
    "clipped": ("clip:0.3", "weigh:equal"),
    "noise 0.6": ("clip:0.3", "weigh:equal", "noise:0.6"),
    "noise 1.0": ("clip:0.3", "weigh:equal", "noise:1.0"),
    "noise 1.0, quantile": ("clip:0.3:quantile=0.5", "weigh:equal", "noise:1.0"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for name, stages in RUNS.items():
        plan = Plan(**COMMON, stages=stages, rounds=options.rounds)
        summary = run(plan).summary
        epsilon = summary.privacy["epsilon"] if summary.privacy else None
        rows.append({"run": name, "stages": list(stages), "accuracy": summary.final_accuracy, "epsilon": epsilon})
        print(rows[-1], flush=True)
    record = {"date": str(date.today()), "plan": {**COMMON, "rounds": options.rounds}, "runs": rows}
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
