"""Local optimisers: how clients step. A new one is one file and one line here."""

from fedavg.optimizers.adam import Adam, AdamW
from fedavg.optimizers.optimizer import Correction, Folded, Optimizer, Steps
from fedavg.optimizers.sgd import SGD
from fedavg.specs import parse_spec

OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def make_optimizer(text: str) -> Optimizer:
    """An optimiser as a plan writes it: its name, and its settings after colons."""
    return parse_spec(text, OPTIMIZERS, "optimizer")


__all__ = ["OPTIMIZERS", "SGD", "Adam", "AdamW", "Correction", "Folded", "Optimizer", "Steps", "make_optimizer"]
