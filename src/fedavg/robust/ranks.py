"""The mean of some ranks of each coordinate: medians and trimmed means.

For few updates a C kernel computes it in one pass, which helps a search for the most harmful lie: it reduces the same
updates many times in a round. Without the kernel, NumPy gives the same bits.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from fedavg import native
from fedavg.robust.rows import Rows
from fedavg.robust.sorting import NETWORK_ROWS, network, sorted_columns

SOURCE: Final = Path(__file__).with_suffix(".c")


def rank_means(rows: Rows, ranks: range) -> np.ndarray:
    """The mean of the values of each coordinate that have these ranks, the least being 0: shape (P,), float64.

    >>> rows = Rows.of([np.array([value], np.float32) for value in (1.0, 9.0, 3.0, 5.0)])
    >>> rank_means(rows, range(1, 3)).tolist()
    [4.0]
    """
    few = len(rows) <= NETWORK_ROWS
    if few and (built := native.library(SOURCE)):
        return _by_kernel(built, rows, ranks)
    total = np.empty(rows.size)
    for place, tile in _few_tiles(rows) if few else rows.tiles():
        total[place] = sorted_columns(tile)[ranks.start : ranks.stop].mean(axis=0, dtype=np.float64)
    return total


def _by_kernel(built: ctypes.CDLL, rows: Rows, ranks: range) -> np.ndarray:
    vectors = [np.ascontiguousarray(vector, np.float32) for vector in rows.basis.vectors]
    places = (ctypes.c_void_p * len(vectors))(*(vector.ctypes.data for vector in vectors))
    mix = None if rows.mix is None else np.ascontiguousarray(rows.mix, np.float32)
    pairs = np.array(network(len(rows)), np.int32).reshape(-1, 2)
    means = np.empty(rows.size)
    sizes = [len(rows), len(vectors), rows.size, len(pairs), ranks.start, ranks.stop]
    arrays = [None if array is None else array.ctypes.data for array in (mix, pairs, means)]
    if built.rank_means(*map(ctypes.c_long, sizes), places, *map(ctypes.c_void_p, arrays)):
        raise MemoryError(f"rank_means of {len(rows)} rows")
    return means


def _few_tiles(rows: Rows) -> Iterator[tuple[slice, np.ndarray]]:
    """The values of all rows as the kernel computes them: sums are rounded in the order of the vectors."""
    mix = None if rows.mix is None else rows.mix.astype(np.float32)
    for place, tile in rows.basis.tiles(range(len(rows.basis.vectors))):
        yield place, tile if mix is None else np.stack([_mixed(weights, tile) for weights in mix])


def _mixed(weights: np.ndarray, tile: np.ndarray) -> np.ndarray:
    total = np.zeros(tile.shape[1], np.float32)
    for row in np.flatnonzero(weights):
        total += weights[row] * tile[row]
    return total
