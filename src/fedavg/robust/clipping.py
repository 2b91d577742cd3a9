"""Clipping of single updates on the server, to a fixed norm or to one that follows the updates.

ARC is adaptive robust clipping: Allouah et al. 2025, "Adaptive Gradient Clipping for Robust Federated Learning",
Algorithm 2: of n norms the k = floor(2 (f/n) (n - f)) largest are cut down to the next one.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from fedavg.errors import PlanError
from fedavg.robust.normbound import scales
from fedavg.robust.reducer import Case, PreAggregator, Tolerant
from fedavg.robust.rows import Rows, norms


@dataclass(frozen=True)
class StaticClipping(PreAggregator):
    """Scales each update down to a norm of at most `norm`.

    >>> str(StaticClipping(2.0))
    'clip:2.0'
    """

    name = "clip"
    norm: float

    def __post_init__(self) -> None:
        if not 0 < self.norm < inf:
            raise PlanError(f"pre clip: got a norm of {self.norm:g}; expected a finite number above 0")

    def mix(self, rows: Rows, case: Case) -> np.ndarray:
        return np.diag(scales(rows, self.norm))


@dataclass(frozen=True)
class AdaptiveClipping(Tolerant, PreAggregator):
    """ARC: scales the longest updates down to the norm of the longest trusted one.

    >>> str(AdaptiveClipping(0.3))
    'arc:0.3'
    """

    name = "arc"

    def mix(self, rows: Rows, case: Case) -> np.ndarray:
        n, f = len(rows), case.faults
        cut = int(2 * f / n * (n - f))
        threshold = np.sort(norms(rows.gram))[n - cut - 1]
        # Updates that are all zero have no length to cut.
        return np.diag(scales(rows, threshold)) if threshold > 0 else np.diag((norms(rows.gram) <= 0).astype(float))
