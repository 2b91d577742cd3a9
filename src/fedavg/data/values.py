"""Values as users have them (arrays, tensors, lists, images) as columns with a row per example, and as tensors.

A column is a NumPy array, or a `Ragged` where rows have different lengths. `x` and `y` are a column, or a tuple or a
dict of columns (see `fedavg.trees`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedavg import trees
from fedavg.errors import DataError
from fedavg.ragged import Ragged
from fedavg.trees import Tree

#: What a column can be made of: arrays, tensors, nested lists.
Values = np.ndarray | Tensor | Sequence[Any]
Column = np.ndarray | Ragged
#: The examples of one client, or of the test set: x and y.
XY = tuple[Tree, Tree]


def as_columns(values: Any, what: str) -> Tree:
    """A column, or several: of a dict, or of a tuple of arrays, tensors or lists."""
    if isinstance(values, Mapping):
        return {str(name): as_column(leaf, f"{what}[{name!r}]") for name, leaf in values.items()}
    if isinstance(values, tuple) and values and all(isinstance(leaf, np.ndarray | Tensor | list) for leaf in values):
        return tuple(as_column(leaf, f"{what}[{place}]") for place, leaf in enumerate(values))
    return as_column(values, what)


def as_column(values: Any, what: str) -> Column:
    """One row per example. `what` names the values in messages."""
    if isinstance(values, Ragged) or (isinstance(values, np.ndarray) and values.dtype != object):
        return values
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise DataError(
            f"{what} is {type(values).__name__} {values!r:.60}; expected an array, a tensor or a list with a row per "
            "example."
        )
    return _stacked([_row(row, f"{what}, row {number}") for number, row in enumerate(values)], what)


def as_array(values: Any, what: str) -> np.ndarray:
    """A column whose rows must be of one length."""
    column = as_column(values, what)
    if isinstance(column, Ragged):
        raise DataError(f"{what} has rows of different lengths; expected equal ones. Pad them.")
    return column


def _row(value: Any, what: str) -> np.ndarray:
    """One example's value: a number, a word, an image or an array of any shape."""
    try:
        row = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    except ValueError:
        raise DataError(f"{what} is a list of lists of different lengths; expected equal ones. Pad them.") from None
    if row.dtype == object:
        raise DataError(f"{what} is {value!r:.60}; expected a number, a word or an array of numbers.")
    return row


def _stacked(rows: list[np.ndarray], what: str) -> Column:
    words = [number for number, row in enumerate(rows) if row.dtype.kind in "US"]
    if 0 < len(words) < len(rows):
        number = words[0] if len(words) <= len(rows) / 2 else next(n for n in range(len(rows)) if n not in set(words))
        raise DataError(f"{what} has words and numbers: row {number} is {rows[number].tolist()!r}; expected one kind.")
    if len({row.shape for row in rows}) > 1:
        return _ragged(rows, what)
    return np.stack(rows) if rows else np.empty(0, np.float32)


def _ragged(rows: list[np.ndarray], what: str) -> Ragged:
    for number, row in enumerate(rows):
        if row.ndim < 1 or row.ndim != rows[0].ndim or row.shape[1:] != rows[0].shape[1:]:
            raise DataError(
                f"{what} has rows of different forms: row {number} has shape {row.shape}, row 0 has {rows[0].shape}; "
                "expected the same, except for the length of a sequence."
            )
    return Ragged.of([_tensor(row, what) for row in rows])


def form(column: Column) -> tuple[int | str, ...]:
    """The shape of one example; the length of a sequence is '?'."""
    return tuple(column.shape[1:])


def is_words(column: Column) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.kind in "US"


def rows_of(tree: Tree, chosen: slice | np.ndarray) -> Tree:
    return trees.changed(tree, lambda column: _chosen(column, chosen))


def _chosen(column: Column, chosen: slice | np.ndarray) -> Column:
    if isinstance(column, Ragged) and isinstance(chosen, np.ndarray):
        return column.index_select(0, torch.from_numpy(chosen))
    return column[chosen]  # type: ignore[index]


def joined(parts: Sequence[Tree]) -> Tree:
    """The rows of all, end to end. One without rows says nothing of their form."""
    full = [part for part in parts if trees.length(part)] or list(parts[:1])
    return trees.rebuilt(full[0], [_joined(list(c)) for c in zip(*map(trees.leaves, full), strict=True)])


def _joined(columns: list[Column]) -> Column:
    alike = as_ragged(columns)
    return Ragged.joined(alike) if isinstance(alike[0], Ragged) else np.concatenate(alike)  # type: ignore[arg-type]


def as_ragged(columns: Sequence[Column]) -> list[Column]:
    """All as sequences of different lengths, if one is."""
    if not any(isinstance(column, Ragged) for column in columns):
        return list(columns)
    return [c if isinstance(c, Ragged) else Ragged.of([*_tensor(c, "a sequence")]) for c in columns]


def numbered(labels: Column, classes: Sequence[str] | None = None) -> Column:
    """Words as numbers, by their place in `classes`, or in alphabetical order; numbers as they are."""
    if not (isinstance(labels, np.ndarray) and is_words(labels)):
        return labels
    words, places = np.unique(labels, return_inverse=True)
    if classes is None:
        return places
    names = {name: number for number, name in enumerate(classes)}
    for word in words:
        if str(word) not in names:
            raise DataError(f"got the label {str(word)!r}; expected one of the task's classes: {', '.join(classes)}.")
    numbers = np.array([names[str(word)] for word in words], np.int64)
    return np.asarray(numbers[places])


def as_leaf(column: Column, what: str) -> Tensor | Ragged:
    """Numbers as tensors have them here: float64 becomes float32, integers other than uint8 become int64."""
    return column if isinstance(column, Ragged) else _tensor(column, what)


def _tensor(values: np.ndarray, what: str) -> Tensor:
    if values.dtype.kind not in "biuf":
        raise DataError(f"{what} has values of type {values.dtype}: expected numbers, as many in each row.")
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    elif values.dtype.kind in "iu" and values.dtype != np.uint8:
        values = values.astype(np.int64)
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))
