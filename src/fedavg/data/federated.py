"""Federated data that fits in memory. Knows tensors and who owns which rows, not where they came from."""

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import final

import numpy as np
import torch
from torch import Tensor

from fedavg import trees
from fedavg.data.values import Values, as_column, as_leaf
from fedavg.errors import DataError
from fedavg.ragged import Ragged
from fedavg.trees import Tree
from fedavg.types import Examples, FederatedData


@final
class ArrayData(FederatedData):
    """All training examples in one pair of tensors, held once, ordered by client.

    `x` and `y` have shape (N, ...), or are tuples or dicts of such tensors; `parts` names the rows of each client. The
    rows are put in the order of the clients once, so that a client is a slice: no copy when it is asked for, and forked
    processes share the pages. Tensors are taken as they are; arrays and lists become tensors (float32, int64, uint8 or
    bool), lists of rows of different lengths a `Ragged`.

    >>> data = ArrayData("mine", [[1.0], [2.0], [3.0]], [0, 1, 1], parts=[[0, 2], [1]], test=([[4.0]], [0]))
    >>> data.client(0).x.tolist()
    [[1.0], [3.0]]
    """

    def __init__(
        self,
        name: str,
        x: Tree,
        y: Tree,
        parts: Sequence[Sequence[int] | np.ndarray],
        test: Examples | tuple[Tree, Tree] | None,
        classes: Sequence[str] | None = None,
    ) -> None:
        """`classes` are the names of the labels, in the order of their numbers, where they are known."""
        self._classes = None if classes is None else tuple(classes)
        x, y = _tensors(x, f"{name}: x"), _tensors(y, f"{name}: y")
        numbers = [_row_numbers(part, name) for part in parts]
        if isinstance(test, tuple):
            test = Examples(_tensors(test[0], f"{name}: test x"), _tensors(test[1], f"{name}: test y"))
        _check(name, x, y, numbers, test)
        self.name = name
        self._test = test
        self._sizes = np.array([len(part) for part in numbers], np.int64)
        self._ends = np.cumsum(self._sizes)
        order = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
        in_order = np.array_equal(order, np.arange(trees.length(y)))
        self._all = Examples(x, y) if in_order else Examples(_rows(x, order), _rows(y, order))

    @property
    def sizes(self) -> np.ndarray:
        return self._sizes

    def client(self, k: int) -> Examples:
        if not 0 <= k < len(self._sizes):
            raise DataError(f"{self.name} has no client {k}: expected 0 to {len(self._sizes) - 1}.")
        rows = slice(int(self._ends[k] - self._sizes[k]), int(self._ends[k]))
        return trees.take(self._all, rows)

    @property
    def test(self) -> Examples | None:
        return self._test

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self._classes

    @cached_property
    def fingerprint(self) -> str:
        digest = blake2b(digest_size=16)
        sets = (self._all, *([self._test] if self._test else []))
        for tree in (side for examples in sets for side in (examples.x, examples.y)):
            digest.update("".join(tree if isinstance(tree, dict) else ()).encode())
            for leaf in trees.leaves(tree):
                for tensor in leaf.parts if isinstance(leaf, Ragged) else (leaf,):
                    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                    digest.update(_bytes(tensor).data)
        digest.update(self._sizes.tobytes())
        return digest.hexdigest()


def pooled(data: FederatedData) -> FederatedData:
    """The same examples as one client, in the order of the clients: what plain SGD trains on (§3, CIFAR)."""
    parts = [data.client(k) for k in range(len(data))]
    x, y = trees.joined([part.x for part in parts]), trees.joined([part.y for part in parts])
    return ArrayData(f"{data.name}, pooled", x, y, [np.arange(trees.length(y))], data.test)


def _tensors(tree: Tree, what: str) -> Tree:
    return trees.changed(tree, lambda leaf: _tensor(leaf, what))


def _tensor(values: Values | Ragged, what: str) -> Tensor | Ragged:
    return values if isinstance(values, Tensor | Ragged) else as_leaf(as_column(values, what), what)


def _row_numbers(part: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
    rows = np.asarray(part)
    if rows.size and rows.dtype.kind not in "iu":
        raise DataError(f"{name}: parts has {part!r:.60}; expected lists of row numbers, one for each client.")
    return rows.astype(np.int64)


def _rows(tree: Tree, order: np.ndarray) -> Tree:
    return trees.changed(tree, lambda leaf: _leaf_rows(leaf, order))


def _leaf_rows(tensor: Tensor | Ragged, order: np.ndarray) -> Tensor | Ragged:
    if isinstance(tensor, Ragged):
        return tensor.index_select(0, torch.from_numpy(order))
    # By NumPy: PyTorch would start its thread pool, which does not survive the fork of the workers.
    moved = torch.from_numpy(_bytes(tensor)[order])
    return moved.view(-1).view(tensor.dtype).view(len(order), *tensor.shape[1:])


def _bytes(tensor: Tensor) -> np.ndarray:
    """A view of the values as bytes, shape (N, bytes per row); any dtype, also those that NumPy does not have."""
    # One row made by NumPy's [:, None] has a stride of 0, which is contiguous and yet no view of bytes.
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return flat.reshape(len(tensor), flat.size // max(len(tensor), 1))


def _check(name: str, x: Tree, y: Tree, parts: Sequence[np.ndarray], test: Examples | None) -> None:
    _check_rows(f"{name}: training", Examples(x, y))
    if test is not None:
        _check_rows(f"{name}: test", test)
    rows = trees.length(y)
    for k, part in enumerate(parts):
        if part.ndim != 1 or (len(part) and not (part.min() >= 0 and part.max() < rows)):
            raise DataError(
                f"{name}: client {k} has rows outside 0 to {rows - 1}, or not a flat list of them. "
                "Make each part a 1-D array of row numbers."
            )


def _check_rows(what: str, examples: Examples) -> None:
    """Tensors, or tuples or dicts of them, that all have as many rows."""
    for name, tree in (("x", examples.x), ("y", examples.y)):
        for leaf in trees.leaves(tree):
            if not isinstance(leaf, Tensor | Ragged):
                raise DataError(
                    f"{what} {name} has a {type(leaf).__name__}; expected a tensor, or a tuple or a dict of tensors. "
                    "Make it one with torch.as_tensor."
                )
    every = [*trees.leaves(examples.x), *trees.leaves(examples.y)]
    if any(len(leaf.shape) < 1 for leaf in every) or len({len(leaf) for leaf in every}) != 1:
        raise DataError(
            f"{what} x has shape {trees.shapes(examples.x)} and y {trees.shapes(examples.y)}: "
            "expected the same first dimension, one row per example."
        )
