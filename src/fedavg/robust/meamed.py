"""The mean around the median: Xie, Koyejo and Gupta 2018, "Generalized Byzantine-tolerant SGD", §4.3."""

from dataclasses import dataclass

import numpy as np

from fedavg.robust.median import middle
from fedavg.robust.reducer import Coordinatewise, Tolerant


@dataclass(frozen=True)
class MeanAroundMedian(Tolerant, Coordinatewise):
    """The mean of the n - f values of each coordinate that are nearest to its median.

    >>> str(MeanAroundMedian(0.3))
    'meamed:0.3'
    """

    name = "meamed"

    def of_sorted(self, values: np.ndarray, faults: int) -> np.ndarray:
        """In rising order the n - f nearest values are adjacent, so there are only f + 1 candidates."""
        kept = len(values) - faults
        center = middle(values)
        reach = np.stack(
            [np.maximum(center - values[first], values[first + kept - 1] - center) for first in range(faults + 1)]
        )
        first = reach.argmin(axis=0)
        sums = np.zeros((len(values) + 1, values.shape[1]))
        np.cumsum(values, axis=0, dtype=np.float64, out=sums[1:])
        everyone = np.arange(values.shape[1])
        mean: np.ndarray = (sums[first + kept, everyone] - sums[first, everyone]) / kept
        return mean
