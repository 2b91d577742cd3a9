"""Why our CNN takes twice the paper's rounds with one client a round (Table 1, C=0, E=5, B=10, IID).

The paper's CNN has the layers of TensorFlow's MNIST example of its time, which scaled pixels to [-0.5, 0.5], drew
weights from a normal distribution of deviation 0.1, cut at two deviations, with biases of 0 for the first layer and 0.1
for the others, and dropped half of the 512 units in training. We scale to [0, 1], start as PyTorch does and drop none.
And where one client is drawn in each round, as in Algorithm 1, 50 rounds meet some 40 of 100 clients; in turns they
would meet 50. This trains with one of these and notes the rounds to 99 %; null where they are not reached. What FILE
has is not run again.

usage: python examples/paper/one_client.py [--variants ours,pixels,weights,both,glorot,dropout,turns] [--seeds 1]
                                           [--rates 0.0464,0.1,0.215] [--rounds 120] [--out FILE]
"""

import argparse
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from fedavg import LocalFleet, Plan, Round, Task, Work, train
from fedavg.errors import Diverged
from fedavg.fleets.fleet import Assign, CohortResult
from fedavg.runlog.curves import rounds_to_target
from fedavg.setup import resolve
from fedavg.tasks.mnist import cnn, image

TARGET = 0.99


def as_tensorflow_drew_them() -> nn.Module:
    module = cnn()
    for name, parameter in module.named_parameters():
        if name.endswith("weight"):
            nn.init.trunc_normal_(parameter, std=0.1, a=-0.2, b=0.2)
        else:
            nn.init.constant_(parameter, 0.0 if name == "0.bias" else 0.1)
    return module


def as_glorot_drew_them() -> nn.Module:
    """The default of TensorFlow's layers: variance 2 / (inputs + outputs), biases of 0."""
    module = cnn()
    for name, parameter in module.named_parameters():
        if name.endswith("weight"):
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.zeros_(parameter)
    return module


def dropping_half() -> nn.Module:
    *layers, last = cnn().children()
    return nn.Sequential(*layers, nn.Dropout(0.5), last)


def centred(x: Tensor) -> Tensor:
    return image(x) - 0.5


class InTurns(LocalFleet):
    """All clients take their turns, in a new order each time, before one comes again."""

    def train(self, work: Work, assign: Assign) -> CohortResult:
        clients = self._setup.eligible
        time, place = divmod(work.round - 1, len(clients))
        order = np.random.default_rng((self._setup.plan.seed, time)).permutation(clients)
        return super().train(work, lambda _: assign([int(order[place])]))


@dataclass(frozen=True)
class Variant:
    build: Callable[[], nn.Module] = cnn
    prepare: Callable[[Tensor], Tensor] = image
    fleet: type[LocalFleet] = LocalFleet


VARIANTS = {
    "ours": Variant(),
    "pixels": Variant(prepare=centred),
    "weights": Variant(as_tensorflow_drew_them),
    "both": Variant(as_tensorflow_drew_them, centred),
    "glorot": Variant(as_glorot_drew_them),
    "dropout": Variant(dropping_half),
    "turns": Variant(fleet=InTurns),
}


def rounds_to_99(variant: Variant, lr: float, rounds: int, seed: int) -> float | None:
    task = Task("cnn", variant.build, prepare=variant.prepare, eval_batch=200)
    plan = Plan(
        task=task, data="mnist", partition="iid", C=0, E=5, B=10, lr=lr, rounds=rounds, target=TARGET, seed=seed,
        workers=1,
    )  # fmt: skip
    setup = resolve(plan)
    events = train(setup, variant.fleet(setup, plan.workers))
    accuracy: list[float] = []
    with suppress(Diverged):
        accuracy.extend(event.test["accuracy"] for event in events if isinstance(event, Round) and event.test)
    return rounds_to_target(range(1, len(accuracy) + 1), accuracy, TARGET)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--rates", default="0.0464,0.1,0.215")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.out.read_text()) if options.out and options.out.exists() else []
    rates = map(float, options.rates.split(","))
    for name, lr, seed in product(options.variants.split(","), rates, range(options.seeds)):
        setting = {"variant": name, "lr": lr, "seed": seed, "rounds": options.rounds}
        if any(row.items() >= setting.items() for row in rows):
            continue
        rows.append(setting | {"rounds_to_99": rounds_to_99(VARIANTS[name], lr, options.rounds, seed)})
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
