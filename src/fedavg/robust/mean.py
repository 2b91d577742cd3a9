"""The plain mean of the updates, each counting equally: no defence of its own. With steps before it, it may be one."""

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
        """It withstands no liars, and claims nothing else, so their number is not checked."""
        return rows
