"""Local optimisers: how clients step. A new one is one file and one line here."""

from fedavg.optimizers.adam import Adam, AdamW
from fedavg.optimizers.optimizer import Correction, Folded, Optimizer, Steps
from fedavg.optimizers.sgd import SGD
from fedavg.specs import make

OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def make_optimizer(value: str | Optimizer) -> Optimizer:
    """The optimiser that a plan specifies: the object, or its name with settings after colons."""
    return make(value, Optimizer)  # type: ignore[type-abstract]


__all__ = ["OPTIMIZERS", "SGD", "Adam", "AdamW", "Correction", "Folded", "Optimizer", "Steps", "make_optimizer"]
