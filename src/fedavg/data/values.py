"""What users hold values in (arrays, tensors, lists, images) as NumPy arrays with a row per example, and as tensors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedavg.errors import DataError

#: What an array can be made of: arrays, tensors, nested lists.
Values = np.ndarray | Tensor | Sequence[Any]
#: The examples of one client, or of the test set: x (n, ...) and y (n, ...).
Pair = tuple[np.ndarray, np.ndarray]


def as_array(values: Values | Iterable[Any], what: str) -> np.ndarray:
    """One row per example. `what` names the values in messages."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise DataError(
            f"{what} is {type(values).__name__} {values!r:.60}; expected an array, a tensor or a list with a row per "
            "example."
        )
    return _stacked([_row(row, f"{what}, row {number}") for number, row in enumerate(values)], what)


def _row(value: Any, what: str) -> np.ndarray:
    """One example's value: a number, a word, an image or an array of any shape."""
    try:
        row = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    except ValueError:
        raise DataError(f"{what} is a list of lists of different lengths; expected equal ones. Pad them.") from None
    if row.dtype == object:
        raise DataError(f"{what} is {value!r:.60}; expected a number, a word or an array of numbers.")
    return row


def _stacked(rows: list[np.ndarray], what: str) -> np.ndarray:
    for number, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise DataError(
                f"{what} has rows of different lengths: row {number} has shape {row.shape}, row 0 has "
                f"{rows[0].shape}; expected equal ones. Pad them."
            )
    words = [number for number, row in enumerate(rows) if row.dtype.kind in "US"]
    if 0 < len(words) < len(rows):
        number = words[0] if len(words) <= len(rows) / 2 else next(n for n in range(len(rows)) if n not in set(words))
        raise DataError(f"{what} has words and numbers: row {number} is {rows[number].tolist()!r}; expected one kind.")
    return np.stack(rows) if rows else np.empty(0, np.float32)


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The rows of all, end to end. One without rows says nothing of their form."""
    return np.concatenate([array for array in arrays if len(array)] or [*arrays[:1]])


def numbered(labels: np.ndarray) -> np.ndarray:
    """Words as numbers, in alphabetical order; numbers as they are."""
    return np.unique(labels, return_inverse=True)[1] if labels.dtype.kind in "US" else labels


def as_tensor(values: np.ndarray, what: str) -> Tensor:
    """Numbers as tensors have them here: float64 becomes float32, integers other than uint8 become int64."""
    if values.dtype.kind not in "biuf":
        raise DataError(f"{what} has values of type {values.dtype}: expected numbers, as many in each row.")
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    elif values.dtype.kind in "iu" and values.dtype != np.uint8:
        values = values.astype(np.int64)
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))
