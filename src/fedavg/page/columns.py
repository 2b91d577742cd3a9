"""The numbers of a run's rows, column by column: 10,000 rounds as dictionaries would not fit in memory twenty times."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from math import nan
from typing import Any, Final

import numpy as np

#: Parts of a row that are shown only for a single round: lists and words, or repetitions of a column.
_APART: Final = frozenset({"ledger", "who", "worst", "digest"})


class GrowingColumns:
    """Grows by rows. A value that a row lacks is NaN."""

    def __init__(self) -> None:
        self.count = 0
        self._values: dict[str, array[float]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._values)

    def extend(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            for name, value in leaves(row):
                column = self._values.setdefault(name, array("d"))
                self._fill(column)
                column.append(value)
            self.count += 1
        for column in self._values.values():
            self._fill(column)

    def _fill(self, column: "array[float]") -> None:
        column.extend([nan] * (self.count - len(column)))

    def get(self, name: str) -> np.ndarray:
        """The column, shape (count,), float64; all NaN if no row has it."""
        found = self._values.get(name)
        return np.array(found, np.float64) if found is not None else np.full(self.count, nan)

    def last(self, name: str) -> float | None:
        """The last value of a column that is a number."""
        column = self._values.get(name, array("d"))
        return next((value for value in reversed(column) if value == value), None)

    def total(self, name: str) -> float:
        return float(np.nansum(self.get(name)))


def leaves(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a row by its path.

    >>> list(leaves({"round": 1, "test": {"accuracy": 0.5}, "train": None, "ledger": {"epsilon": 3.0}}))
    [('round', 1.0), ('test.accuracy', 0.5)]
    """
    for name, value in row.items():
        if isinstance(value, list) and prefix.endswith("groups."):
            value = {str(place): each for place, each in enumerate(value)}
        if isinstance(value, Mapping) and name not in _APART:
            yield from leaves(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)
