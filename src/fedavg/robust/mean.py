"""The plain mean of the updates, each counting equally: no defence by itself, but steps before it may make it one."""

from dataclasses import dataclass

import numpy as np

from fedavg.robust.reducer import Case, Combination
from fedavg.robust.rows import Rows


@dataclass(frozen=True)
class PlainMean(Combination):
    """The mean; one client can move it as far as it likes.

    >>> str(PlainMean())
    'mean'
    """

    name = "mean"

    def weights(self, rows: Rows, case: Case) -> np.ndarray:
        return np.full(len(rows), 1 / len(rows))

    def tolerates(self, rows: int) -> int:
        """It withstands no liars and does not claim to, so their number is not checked."""
        return rows
