"""Finds NaN and infinity in examples: a model cannot be judged on them, and the fault is not the model's."""

import torch
from torch import Tensor

from fedavg import trees
from fedavg.errors import DataError
from fedavg.ragged import Ragged
from fedavg.types import Examples


def check_finite(examples: Examples, whose: str) -> None:
    """Refuse examples that hold NaN or infinity, naming the first row that does."""
    for part, value in (("x", examples.x), ("y", examples.y)):
        for tensor in map(_numbers, trees.leaves(value)):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                row = int((~torch.isfinite(tensor)).flatten(1 if tensor.dim() > 1 else 0).nonzero()[0][0])
                raise DataError(
                    f"{whose}: {part} holds NaN or infinity, first in row {row}; expected finite numbers: "
                    "repair that row or leave it out"
                )


def _numbers(leaf: Tensor | Ragged) -> Tensor:
    return leaf.values if isinstance(leaf, Ragged) else leaf
