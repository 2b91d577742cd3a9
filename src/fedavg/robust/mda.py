"""Minimum-diameter averaging: El Mhamdi, Guerraoui, Guirguis, Hoang and Rouault 2020, after Rousseeuw 1985.

The mean of the n - f updates whose largest distance to each other is the smallest. Of several such subsets the first
counts, in the order of the clients.

A subset of n - f updates with no pair further apart than D exists exactly if the graph of pairs further apart than D
has a vertex cover of f updates. So the smallest D is found by bisection; each step is a search that branches on the
update with the most distant pairs, which takes far fewer steps than there are subsets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedavg.robust.krum import mean_of
from fedavg.robust.reducer import Case, Combination, Tolerant
from fedavg.robust.rows import Rows, squared_distances


@dataclass(frozen=True)
class MinimumDiameter(Tolerant, Combination):
    """The mean of the n - f updates that are closest together.

    >>> str(MinimumDiameter(0.3))
    'mda:0.3'
    """

    name = "mda"

    def weights(self, rows: Rows, case: Case) -> np.ndarray:
        return mean_of(len(rows), closest(squared_distances(rows.gram), case.faults))


def closest(distances: np.ndarray, faults: int) -> np.ndarray:
    """The n - f rows of the smallest diameter, the first such subset in rising order.

    >>> closest(np.array([[0.0, 1, 9], [1, 0, 9], [9, 9, 0]]), 1).tolist()
    [0, 1]
    """
    n = len(distances)
    diameters = np.unique(distances)
    low, high = 0, len(diameters) - 1
    while low < high:
        half = (low + high) // 2
        if _covered(_distant(distances, diameters[half]), (1 << n) - 1, faults):
            high = half
        else:
            low = half + 1
    return np.array(_first(_distant(distances, diameters[low]), n, faults))


def _distant(distances: np.ndarray, diameter: float) -> list[int]:
    """For each row, as bits, the rows that are further away than this."""
    return [sum(1 << int(j) for j in np.flatnonzero(row > diameter)) for row in distances]


def _first(distant: Sequence[int], n: int, faults: int) -> list[int]:
    """Keep a row whenever a subset of n - f rows that contains it and the rows kept before is possible."""
    kept: list[int] = []
    wanted = n - faults
    left = (1 << n) - 1  # rows that may still be kept or dropped
    for row in range(n):
        without = left & ~(1 << row)
        clashes = distant[row] & without
        dropped = clashes.bit_count()
        if left >> row & 1 and dropped <= faults and _covered(distant, without & ~clashes, faults - dropped):
            kept.append(row)
            left, faults = without & ~clashes, faults - dropped
        elif left >> row & 1:
            left, faults = without, faults - 1
    return kept[:wanted]


def _covered(distant: Sequence[int], left: int, faults: int) -> bool:
    """Whether dropping `faults` of the remaining rows leaves no distant pair among them."""
    degrees = {row: (distant[row] & left).bit_count() for row in _bits(left)}
    row = max(degrees, key=lambda each: degrees[each], default=-1)
    if row < 0 or degrees[row] == 0:
        return True
    if faults <= 0 or sum(degrees.values()) > 2 * faults * degrees[row]:
        return False
    neighbours = distant[row] & left
    if _covered(distant, left & ~(1 << row), faults - 1):
        return True
    count = degrees[row]
    # With one neighbour, dropping the neighbour instead of the row is no better.
    return count > 1 and count <= faults and _covered(distant, left & ~neighbours & ~(1 << row), faults - count)


def _bits(mask: int) -> list[int]:
    rows = []
    while mask:
        lowest = mask & -mask
        rows.append(lowest.bit_length() - 1)
        mask ^= lowest
    return rows
