"""Sorts the columns of a tile. Few rows are sorted by a network of comparisons of whole rows, many by NumPy's own sort.

A column of a dozen numbers is too short for a call per column; one comparison of two rows handles thousands of columns.
"""

from functools import cache
from typing import Final

import numpy as np

#: Up to this many rows a network is faster: it takes about n log² n / 4 comparisons of rows.
NETWORK_ROWS: Final = 32


def sorted_columns(tile: np.ndarray) -> np.ndarray:
    """Each column in rising order, shape (n, T). The tile's own memory may be used.

    >>> sorted_columns(np.array([[3, 1], [1, 5], [2, 0]], np.float32)).tolist()
    [[1.0, 0.0], [2.0, 1.0], [3.0, 5.0]]
    """
    if len(tile) > NETWORK_ROWS:
        columns = np.ascontiguousarray(tile.T)  # sorting is several times faster if each list is a row
        columns.sort(axis=1)
        return columns.T
    spare = np.empty(tile.shape[1], tile.dtype)
    for low, high in network(len(tile)):
        np.minimum(tile[low], tile[high], out=spare)
        np.maximum(tile[low], tile[high], out=tile[high])
        tile[low] = spare
    return tile


@cache
def network(rows: int) -> tuple[tuple[int, int], ...]:
    """Pairs of rows to put in order, one after the other: Batcher's odd-even merge sort.

    >>> network(3)
    ((0, 1), (0, 2), (1, 2))
    """
    pairs: list[tuple[int, int]] = []
    run = 1
    while run < rows:
        step = run
        while step >= 1:
            for start in range(step % run, rows - step, 2 * step):
                lows = range(start, min(start + step, rows - step))
                pairs += [(low, low + step) for low in lows if low // (2 * run) == (low + step) // (2 * run)]
            step //= 2
        run *= 2
    return tuple(pairs)
