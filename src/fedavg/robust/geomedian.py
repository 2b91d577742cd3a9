"""The geometric median, by smoothed Weiszfeld steps: Pillutla, Kakade and Harchaoui 2022, "Robust Aggregation for
Federated Learning", Algorithm 2.

    z = 0;   steps times:  b_i = 1 / max(nu, |x_i - z|);   z = Σ b_i x_i / Σ b_i

z is always a combination of the updates, so the distances come from inner products: a step costs n², not n P.
"""

from dataclasses import dataclass

import numpy as np

from fedavg.errors import PlanError
from fedavg.robust.reducer import Case, Combination
from fedavg.robust.rows import Rows


@dataclass(frozen=True)
class GeometricMedian(Combination):
    """The point with the smallest sum of distances to all updates.

    >>> str(GeometricMedian(nu=0.1, steps=3))
    'geomedian:0.1:3'
    """

    name = "geomedian"
    nu: float = 1e-6
    steps: int = 100

    def __post_init__(self) -> None:
        if not (self.nu > 0 and self.steps >= 1):
            raise PlanError(f"geomedian: got nu={self.nu:g}, steps={self.steps}; expected nu above 0, 1 or more steps")

    def weights(self, rows: Rows, case: Case) -> np.ndarray:
        gram = rows.gram
        z = np.zeros(len(rows))
        for _step in range(self.steps):
            squares = np.diagonal(gram) - 2 * (gram @ z) + z @ gram @ z
            nearness = 1 / np.maximum(np.sqrt(np.maximum(squares, 0.0)), self.nu)
            z = nearness / nearness.sum()
        return z
