"""Sums of metrics as a float32 vector without loss: each float64 is the sum of three float32."""

from typing import Final

import numpy as np
import torch
from torch import Tensor

#: float32 has 24 bits of precision, float64 has 53.
PARTS: Final = 3


def split(sums: np.ndarray) -> Tensor:
    """float64 (S,) to float32 (3 S,).

    >>> joined(split(np.array([0.1, -3e9]))).tolist()
    [0.1, -3000000000.0]
    """
    parts, rest = [], sums.astype(np.float64)
    for _part in range(PARTS):
        parts.append(rest.astype(np.float32))
        rest = rest - parts[-1]
    return torch.from_numpy(np.concatenate(parts))


def joined(vector: Tensor) -> np.ndarray:
    """float32 (3 S,) to float64 (S,)."""
    first, second, third = vector.numpy().astype(np.float64).reshape(PARTS, -1)
    whole: np.ndarray = first + (second + third)
    return whole
