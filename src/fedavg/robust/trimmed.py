"""The trimmed mean of each coordinate: Yin et al. 2018, "Byzantine-Robust Distributed Learning", Definition 2."""

from dataclasses import dataclass

import numpy as np

from fedavg.robust.reducer import Coordinatewise, Tolerant


@dataclass(frozen=True)
class TrimmedMean(Tolerant, Coordinatewise):
    """The mean of what is left of each coordinate without its f largest and f smallest values.

    >>> str(TrimmedMean(0.3))
    'trimmed:0.3'
    """

    name = "trimmed"

    def of_sorted(self, values: np.ndarray, faults: int) -> np.ndarray:
        kept: np.ndarray = values[faults : len(values) - faults].mean(axis=0, dtype=np.float64)
        return kept
