"""Puts two short texts of a batch into one row, so that little of the computation is spent on padding.

On average a line of a play has 43 characters, and its row has room for 80. A model that starts from zero at every
`begin` makes the same predictions for packed rows; loss and metrics are over predictions, so they do not change either.
This module knows ids, rows and columns, not models.
"""

from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedavg.metrics import IGNORE

#: Rows are a multiple of this many tokens: a step is compiled for each length, so there should be few.
LENGTHS: Final = 8


def pack(x: Tensor, y: Tensor, begin: int, padding: int) -> tuple[Tensor, Tensor]:
    """The texts of x and y (B, T), two in a row where that saves work, in rows no longer than needed.

    A text ends with its last prediction. One that does not start with `begin` continues another row's text and can
    only be the first of its row. Three texts in a row would leave too few rows for the products of a time step.
    """
    lengths = _lengths(y)
    openers, seconds = _pairs(lengths, (x[:, 0] == begin).cpu().numpy())
    joined = lengths[openers]
    joined[: len(seconds)] += lengths[seconds]
    width, needed = x.shape[1], min(_whole(lengths), x.shape[1])
    if len(openers) * _whole(joined) >= len(x) * needed:
        return x[:, :needed].contiguous(), y[:, :needed].contiguous()
    index = np.full((len(openers), _whole(joined)), x.numel())
    for row, text in enumerate(openers):
        index[row, : lengths[text]] = np.arange(lengths[text]) + text * width
    for row, text in enumerate(seconds):
        index[row, joined[row] - lengths[text] : joined[row]] = np.arange(lengths[text]) + text * width
    where = torch.from_numpy(index).to(x.device)
    return _gather(x, padding, where), _gather(y, IGNORE, where)


def _lengths(y: Tensor) -> np.ndarray:
    """The length of each row, up to its last prediction; shape (B,)."""
    counted = (y != IGNORE).cpu().numpy()
    return np.where(counted.any(1), y.shape[1] - counted[:, ::-1].argmax(1), 0)


def _pairs(lengths: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The texts that open rows, longest first, and the texts that follow in the first of these rows, shortest first."""
    order = np.lexsort((-lengths, begins))
    rows = max((len(order) + 1) // 2, int((~begins).sum()))
    openers, seconds = order[:rows], order[: rows - 1 : -1]
    return openers[np.argsort(-lengths[openers], kind="stable")], seconds


def _whole(lengths: np.ndarray) -> int:
    """The length of rows that hold texts of these lengths, at least one token."""
    longest = max(int(lengths.max()), 1)
    return longest + -longest % LENGTHS


def _gather(ids: Tensor, nothing: int, index: Tensor) -> Tensor:
    """The flat ids at these indexes, shaped like `index`; the index after the last gives `nothing`."""
    return torch.cat([ids.reshape(-1), ids.new_tensor([nothing])])[index]
