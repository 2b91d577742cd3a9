"""Why our CNN takes half the paper's rounds on non-IID data (Table 2, E=1, B=10): are batches cut from shuffled data?

Algorithm 1 splits a client's data into batches and does not say whether it is shuffled. We shuffle in each epoch. A
client of the non-IID partition has two digits, one after the other: batches cut from its data as it lies have one digit
each. This trains so and notes the rounds to 99 %, null where they are not reached, and the highest accuracy. What FILE
has is not run again.

usage: python examples/paper/in_order.py [--rates 0.0464,0.1,0.215] [--rounds 500] [--out FILE]
"""

import json
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedavg import Plan, run
from fedavg.algorithms import ALGORITHMS
from fedavg.algorithms.fedavg import FedAvg
from fedavg.client import Client
from fedavg.errors import Diverged
from fedavg.types import Update, Work
from study import Row, Study, study_options


class AsItLies:
    """In the place of a client's generator of orders."""

    def permutation(self, n: int) -> np.ndarray:
        return np.arange(n)


@dataclass(frozen=True)
class InOrder(FedAvg):
    name = "in-order"

    def client_update(self, client: Client, weights: Tensor, work: Work) -> Update:
        client.__dict__["_shuffle"] = AsItLies()
        return super().client_update(client, weights, work)


ALGORITHMS[InOrder.name] = InOrder


def trained(lr: float, seed: int, rounds: int) -> Row:
    plan = Plan(
        task="mnist-cnn", data="mnist", partition="shards", algorithm=InOrder.name, C=0.1, E=1, B=10, lr=lr,
        rounds=rounds, target=0.99, seed=seed, workers=1,
    )  # fmt: skip
    try:
        summary = run(plan).summary
    except Diverged:
        return {"rounds_to_99": None, "best_accuracy": None}
    return {"rounds_to_99": summary.rounds_to_target, "best_accuracy": summary.best_accuracy}


def main() -> None:
    parser = study_options(__doc__)
    parser.add_argument("--rates", default="0.0464,0.1,0.215")
    parser.add_argument("--rounds", type=int, default=500)
    options = parser.parse_args()
    study = Study(options.out)
    for lr in map(float, options.rates.split(",")):
        print(json.dumps(study.row(trained, lr=lr, seed=0, rounds=options.rounds)), flush=True)


if __name__ == "__main__":
    main()
