"""The trimmed mean of each coordinate: Yin et al. 2018, "Byzantine-Robust Distributed Learning", Definition 2."""

from dataclasses import dataclass

import numpy as np

from fedavg.robust.reducer import Coordinatewise, check_faulty, faulty_clients


@dataclass(frozen=True)
class TrimmedMean(Coordinatewise):
    """The mean of what is left of each coordinate without its f largest and f smallest values.

    >>> str(TrimmedMean(0.3))
    'trimmed:0.3'
    """

    name = "trimmed"
    faulty: int | float = 0.2

    def __post_init__(self) -> None:
        check_faulty(self.name, self.faulty)

    def faults(self, clients: int) -> int:
        return faulty_clients(self.faulty, clients)

    def of_sorted(self, values: np.ndarray, faults: int) -> np.ndarray:
        kept: np.ndarray = values[faults : len(values) - faults].mean(axis=0, dtype=np.float64)
        return kept
