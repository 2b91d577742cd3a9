"""Why our CNN takes twice the paper's rounds with one client a round (Table 1, C=0, E=5, B=10, IID).

The paper's CNN has the layers of TensorFlow's MNIST example of its time, which scaled pixels to [-0.5, 0.5], drew
weights from a normal distribution of deviation 0.1, cut at two deviations, with biases of 0 for the first layer and 0.1
for the others, and dropped half of the 512 units in training. We scale to [0, 1], start as PyTorch does and drop none.
And where one client is drawn in each round, as in Algorithm 1, 50 rounds meet some 40 of 100 clients; in turns they
would meet 50. This trains with some of these and notes the rounds to 99 %; null where they are not reached. What FILE
has is not run again.

usage: python examples/paper/one_client.py [--variants ours,pixels,weights,both,glorot,dropout,turns,turns+pixels]
                                           [--seeds 1] [--rates 0.0464,0.1,0.215] [--rounds 120] [--out FILE]
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass
from itertools import product

import numpy as np
from torch import Tensor, nn

from fedavg import LocalFleet, Plan, Round, Task, train
from fedavg.cohorts import eligible
from fedavg.errors import Diverged
from fedavg.runlog.curves import rounds_to_target
from fedavg.tasks.mnist import cnn, image
from fedavg.types import Cohort
from study import Row, Study, study_options

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

    def draw(self, round: int, weights: Tensor) -> Cohort:
        clients = eligible(self._population)
        time, place = divmod(round - 1, len(clients))
        order = np.random.default_rng((self._setup.plan.seed, time)).permutation(clients)
        return Cohort([int(order[place])], len(clients))


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
    "turns+pixels": Variant(prepare=centred, fleet=InTurns),
}


def trained(variant: str, lr: float, seed: int, rounds: int) -> Row:
    build, prepare, fleet = astuple(VARIANTS[variant])
    task = Task("cnn", build, prepare=prepare, eval_batch=200)
    plan = Plan(
        task=task, data="mnist", partition="iid", C=0, E=5, B=10, lr=lr, rounds=rounds, target=TARGET, seed=seed,
        workers=1,
    )  # fmt: skip
    events = train(plan, fleet())
    accuracy: list[float] = []
    with suppress(Diverged):
        accuracy.extend(event.test["accuracy"] for event in events if isinstance(event, Round) and event.test)
    return {"rounds_to_99": rounds_to_target(range(1, len(accuracy) + 1), accuracy, TARGET)}


def main() -> None:
    parser = study_options(__doc__)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--rates", default="0.0464,0.1,0.215")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    variants, rates = options.variants.split(","), map(float, options.rates.split(","))
    if unknown := set(variants) - set(VARIANTS):
        parser.error(f"no variant {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    study = Study(options.out)
    for variant, lr, seed in product(variants, rates, range(options.seeds)):
        row = study.row(trained, variant=variant, lr=lr, seed=seed, rounds=options.rounds)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
