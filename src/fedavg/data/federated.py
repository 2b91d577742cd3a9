"""Federated data that fits in memory. Knows tensors and who owns which rows, not where they came from."""

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import final

import numpy as np
import torch
from torch import Tensor

from fedavg.data.values import Values, as_array, as_tensor
from fedavg.errors import DataError
from fedavg.types import Examples, FederatedData


@final
class ArrayData(FederatedData):
    """All training examples in one pair of tensors, held once, ordered by client.

    `x` has shape (N, ...), `y` (N, ...), and `parts` names the rows of each client. The rows are put in the order of
    the clients once, so that a client is a slice: no copy when it is asked for, and forked processes share the pages.
    Tensors are taken as they are; arrays and lists become tensors (float32, int64, uint8 or bool).

    >>> data = ArrayData("mine", [[1.0], [2.0], [3.0]], [0, 1, 1], parts=[[0, 2], [1]], test=([[4.0]], [0]))
    >>> data.client(0).x.tolist()
    [[1.0], [3.0]]
    """

    def __init__(
        self,
        name: str,
        x: Values,
        y: Values,
        parts: Sequence[Sequence[int] | np.ndarray],
        test: Examples | tuple[Values, Values] | None,
    ) -> None:
        x, y = _tensor(x, f"{name}: x"), _tensor(y, f"{name}: y")
        numbers = [_row_numbers(part, name) for part in parts]
        if isinstance(test, tuple):
            test = Examples(_tensor(test[0], f"{name}: test x"), _tensor(test[1], f"{name}: test y"))
        _check(name, x, y, numbers, test)
        self.name = name
        self._test = test
        self._sizes = np.array([len(part) for part in numbers], np.int64)
        self._ends = np.cumsum(self._sizes)
        order = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
        in_order = np.array_equal(order, np.arange(len(y)))
        self._x, self._y = (x, y) if in_order else (_rows(x, order), _rows(y, order))

    @property
    def sizes(self) -> np.ndarray:
        return self._sizes

    def client(self, k: int) -> Examples:
        if not 0 <= k < len(self._sizes):
            raise DataError(f"{self.name} has no client {k}: expected 0 to {len(self._sizes) - 1}.")
        rows = slice(int(self._ends[k] - self._sizes[k]), int(self._ends[k]))
        return Examples(self._x[rows], self._y[rows])

    @property
    def test(self) -> Examples | None:
        return self._test

    @cached_property
    def fingerprint(self) -> str:
        digest = blake2b(digest_size=16)
        test = (self._test.x, self._test.y) if self._test else ()
        for tensor in (self._x, self._y, *test):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(_bytes(tensor).data)
        digest.update(self._sizes.tobytes())
        return digest.hexdigest()


def pooled(data: FederatedData) -> FederatedData:
    """The same examples as one client, in the order of the clients: what plain SGD trains on (§3, CIFAR)."""
    parts = [data.client(k) for k in range(len(data))]
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    return ArrayData(f"{data.name}, pooled", x, y, [np.arange(len(y))], data.test)


def _tensor(values: Values, what: str) -> Tensor:
    return values if isinstance(values, Tensor) else as_tensor(as_array(values, what), what)


def _row_numbers(part: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
    rows = np.asarray(part)
    if rows.size and rows.dtype.kind not in "iu":
        raise DataError(f"{name}: parts has {part!r:.60}; expected lists of row numbers, one for each client.")
    return rows.astype(np.int64)


def _rows(tensor: Tensor, order: np.ndarray) -> Tensor:
    # By NumPy: PyTorch would start its thread pool, which does not survive the fork of the workers.
    moved = torch.from_numpy(_bytes(tensor)[order])
    return moved.view(-1).view(tensor.dtype).view(len(order), *tensor.shape[1:])


def _bytes(tensor: Tensor) -> np.ndarray:
    """A view of the values as bytes, shape (N, bytes per row); any dtype, also those that NumPy does not have."""
    flat = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return flat.reshape(len(tensor), flat.size // max(len(tensor), 1))


def _check(name: str, x: Tensor, y: Tensor, parts: Sequence[np.ndarray], test: Examples | None) -> None:
    pairs = [("training", x, y), *([("test", test.x, test.y)] if test else [])]
    for what, left, right in pairs:
        if left.dim() < 1 or right.dim() < 1 or len(left) != len(right):
            raise DataError(
                f"{name}: {what} x has shape {tuple(left.shape)} and y {tuple(right.shape)}: "
                "expected the same first dimension, one row per example."
            )
    for k, part in enumerate(parts):
        if part.ndim != 1 or (len(part) and not (part.min() >= 0 and part.max() < len(y))):
            raise DataError(
                f"{name}: client {k} has rows outside 0 to {len(y) - 1}, or not a flat list of them. "
                "Make each part a 1-D array of row numbers."
            )
