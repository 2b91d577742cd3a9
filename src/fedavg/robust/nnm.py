"""Nearest-neighbour mixing: Allouah et al. 2023, "Fixing by Mixing", Algorithm 2."""

from dataclasses import dataclass

import numpy as np

from fedavg.robust.reducer import Case, PreAggregator, Tolerant
from fedavg.robust.rows import Rows, squared_distances


@dataclass(frozen=True)
class NearestNeighbourMixing(Tolerant, PreAggregator):
    """Replaces each update by the mean of the n - f that are nearest to it, itself among them.

    >>> str(NearestNeighbourMixing(0.3))
    'nnm:0.3'
    """

    name = "nnm"

    def mix(self, rows: Rows, case: Case) -> np.ndarray:
        n = len(rows)
        kept = n - case.faults
        nearest = np.argsort(squared_distances(rows.gram), axis=1, kind="stable")[:, :kept]
        mix = np.zeros((n, n))
        np.put_along_axis(mix, nearest, 1 / kept, axis=1)
        return mix
