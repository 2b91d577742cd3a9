"""Wrong labels: Tolpegin et al. 2020; in this form Allen-Zhu et al. 2021: class c becomes classes - 1 - c."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedavg.attacks.attack import Attack
from fedavg.errors import DataError, PlanError
from fedavg.types import Examples


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Each liar trains honestly on its own examples, with flipped labels. It knows only its own examples.

    >>> str(LabelFlip())
    'labelflip'
    """

    name = "labelflip"
    classes: int = 10

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise PlanError(f"labelflip: got {self.classes} classes; expected 2 or more")

    def on_examples(self, examples: Examples, rng: np.random.Generator) -> Examples:
        labels = checked_labels(examples, self.name, self.classes)
        return Examples(examples.x, self.classes - 1 - labels)


def checked_labels(examples: Examples, attack: str, classes: int | None = None) -> Tensor:
    """The labels, shape (n,), integers; raises for anything else, which this attack cannot handle."""
    y = examples.y
    if not isinstance(y, Tensor) or y.dim() != 1 or y.dtype.is_floating_point or y.dtype == torch.bool:
        raise DataError(f"attack {attack}: the targets are not classes; expected whole numbers, one for each example")
    if classes is not None and len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise DataError(
            f"attack {attack}: got labels from {int(y.min())} to {int(y.max())}; expected 0 to {classes - 1}: "
            f"say how many classes there are, as in '{attack}:{int(y.max()) + 1}'"
        )
    return y
