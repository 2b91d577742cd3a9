"""Rows of different lengths, such as texts: a leaf of structured examples until the task's `collate` pads it."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from fedavg.errors import DataError


@final
class Ragged:
    """Sequences end to end in one tensor `values`, shape (T, ...), and how long each is, `lengths`, shape (N,) int64.

    It has the tensor methods that examples need (`len`, slices, `index_select`), and `padded` makes a tensor of it.

    >>> import torch
    >>> from fedavg import Ragged
    >>> words = Ragged.of([torch.tensor([5, 6, 7]), torch.tensor([8])])
    >>> words.padded(0, multiple=2)
    tensor([[5, 6, 7, 0],
            [8, 0, 0, 0]])
    >>> words.mask(multiple=2)
    tensor([[ True,  True,  True, False],
            [ True, False, False, False]])
    """

    def __init__(self, values: Tensor, lengths: Tensor) -> None:
        if int(lengths.sum()) != len(values):
            raise DataError(f"the lengths add up to {int(lengths.sum())}; expected {len(values)}, the rows of values")
        self.values, self.lengths = values, lengths

    @classmethod
    def of(cls, rows: Sequence[Any]) -> "Ragged":
        """Of a list of tensors, arrays or lists that differ in their first dimension only."""
        tensors = [torch.as_tensor(row) for row in rows]
        lengths = torch.tensor([len(row) for row in tensors], dtype=torch.int64)
        return cls(torch.cat(tensors) if tensors else torch.empty(0), lengths)

    @classmethod
    def joined(cls, parts: Sequence["Ragged"]) -> "Ragged":
        return cls(torch.cat([part.values for part in parts]), torch.cat([part.lengths for part in parts]))

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        return self.values, self.lengths

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int | str, ...]:
        return (len(self), "?", *self.values.shape[1:])

    @cached_property
    def _ends(self) -> Tensor:
        return self.lengths.cumsum(0)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice) -> "Ragged":
        first, last, step = rows.indices(len(self))
        if step != 1 or not isinstance(rows, slice):
            raise TypeError("a Ragged is cut by plain slices only; use index_select for other rows")
        begin = int(self._ends[first - 1]) if first else 0
        end = int(self._ends[last - 1]) if last else 0
        return Ragged(self.values[begin : max(begin, end)], self.lengths[first : max(first, last)])

    def index_select(self, dim: int, rows: Tensor) -> "Ragged":
        """Some of the sequences, in the order of their numbers; `dim` is 0."""
        lengths = self.lengths.index_select(0, rows)
        starts = (self._ends - self.lengths).index_select(0, rows)
        within = torch.arange(int(lengths.sum())) - torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
        places = torch.repeat_interleave(starts, lengths) + within
        return Ragged(self.values.index_select(0, places), lengths)

    def to(self, device: object) -> Tensor:
        """Refused: a module takes tensors, and no `collate` has padded these sequences."""
        raise TypeError("these rows differ in length; give the task a collate, such as collate=fedavg.padded(0)")

    def padded(self, value: float, multiple: int = 8) -> Tensor:
        """Shape (N, L, ...): L is the longest length, rounded up to a multiple (each L is compiled for itself)."""
        mask = self.mask(multiple)
        full = self.values.new_full((*mask.shape, *self.values.shape[1:]), value)
        full[mask] = self.values
        return full

    def mask(self, multiple: int = 8) -> Tensor:
        """True where `padded` has a value of the sequence; shape (N, L), bool."""
        longest = max(int(self.lengths.max()) if len(self) else 0, 1)
        return torch.arange(longest + -longest % multiple) < self.lengths[:, None]
