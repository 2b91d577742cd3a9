"""The mean around the median: Xie, Koyejo and Gupta 2018, "Generalized Byzantine-tolerant SGD", §4.3."""

from dataclasses import dataclass

import numpy as np

from fedavg.robust.median import middle
from fedavg.robust.reducer import Coordinatewise, check_faulty, faulty_clients


@dataclass(frozen=True)
class MeanAroundMedian(Coordinatewise):
    """The mean of the n - f values of each coordinate that are nearest to its median.

    >>> str(MeanAroundMedian(0.3))
    'meamed:0.3'
    """

    name = "meamed"
    faulty: int | float = 0.2

    def __post_init__(self) -> None:
        check_faulty(self.name, self.faulty)

    def faults(self, clients: int) -> int:
        return faulty_clients(self.faulty, clients)

    def of_sorted(self, values: np.ndarray, faults: int) -> np.ndarray:
        """In rising order the n - f nearest values stand next to each other: f + 1 places to look at."""
        kept = values.shape[1] - faults
        center = middle(values)
        reach = np.stack([
            np.maximum(center - values[:, first], values[:, first + kept - 1] - center) for first in range(faults + 1)
        ])  # fmt: skip
        first = reach.argmin(axis=0)
        before = np.cumsum(values, axis=1, dtype=np.float64)
        everyone = np.arange(len(values))
        below = np.where(first > 0, before[everyone, first - 1], 0.0)
        mean: np.ndarray = (before[everyone, first + kept - 1] - below) / kept
        return mean
