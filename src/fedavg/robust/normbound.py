"""Norm bounding: Sun, Kairouz, Suresh and McMahan 2019, "Can You Really Backdoor Federated Learning?", §4."""

from dataclasses import dataclass
from math import inf

import numpy as np

from fedavg.errors import PlanError
from fedavg.robust.reducer import Case, Combination
from fedavg.robust.rows import Rows, norms


@dataclass(frozen=True)
class NormBound(Combination):
    """The mean of updates that are first scaled down to a norm of at most `norm`.

    >>> str(NormBound(2.0))
    'normbound:2.0'
    """

    name = "normbound"
    norm: float

    def __post_init__(self) -> None:
        if not 0 < self.norm < inf:
            raise PlanError(f"normbound: got a norm of {self.norm:g}; expected a finite number above 0")

    def weights(self, rows: Rows, case: Case) -> np.ndarray:
        return scales(rows, self.norm) / len(rows)


def scales(rows: Rows, norm: float) -> np.ndarray:
    """The factor for each row so that none is longer than the norm, shape (n,)."""
    factors: np.ndarray = norm / np.maximum(norms(rows.gram), norm)
    return factors
