"""The median of each coordinate: Yin et al. 2018, "Byzantine-Robust Distributed Learning", Definition 1."""

from dataclasses import dataclass

import numpy as np

from fedavg.robust.reducer import RankMean


@dataclass(frozen=True)
class Median(RankMean):
    """The middle value of each coordinate; the mean of the two middle ones of an even number.

    >>> str(Median())
    'median'
    """

    name = "median"

    def ranks(self, rows: int, faults: int) -> range:
        return range((rows - 1) // 2, rows // 2 + 1)


def middle(values: np.ndarray) -> np.ndarray:
    """The median of each column of values in rising order, shape (n, T) to (T,), float64."""
    n = len(values)
    center: np.ndarray = (values[(n - 1) // 2].astype(np.float64) + values[n // 2]) / 2
    return center
