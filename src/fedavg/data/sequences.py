"""Turns tokens into examples for next-token prediction. Knows numbers, not whether they are characters or words."""

from typing import Final

import numpy as np
import torch
from torch import Tensor

#: The target where there is nothing to predict; PyTorch's cross entropy leaves it out by default.
IGNORE: Final = -100


def windows(tokens: np.ndarray, lengths: np.ndarray, unroll: int, begin: int, padding: int) -> tuple[Tensor, Tensor]:
    """Every token as a target exactly once, with the token before it as input.

    `tokens` (T,) are the texts (lines, posts) end to end, `lengths` (L,) their lengths. Gives x and y, both (N, unroll)
    int64. A text starts with the input `begin` and is cut every `unroll` tokens; the next piece starts with the last
    token of the one before. What is left of a piece has the input `padding` and the target IGNORE.
    """
    lengths = lengths.astype(np.int64)
    pieces = pieces_of(lengths, unroll)
    first_piece = np.cumsum(pieces) - pieces
    starts = np.cumsum(lengths) - lengths
    offset = np.arange(len(tokens)) - np.repeat(starts, lengths)
    row, column = np.repeat(first_piece, lengths) + offset // unroll, offset % unroll
    shape = (int(pieces.sum()), unroll)
    x, y = np.full(shape, padding, np.int64), np.full(shape, IGNORE, np.int64)
    y[row, column] = tokens
    x[row[1:], column[1:]] = tokens[:-1]
    x[row[offset == 0], 0] = begin
    return torch.from_numpy(x), torch.from_numpy(y)


def pieces_of(lengths: np.ndarray, unroll: int) -> np.ndarray:
    """How many rows `windows` makes of each text, shape (L,)."""
    return (lengths.astype(np.int64) + unroll - 1) // unroll
