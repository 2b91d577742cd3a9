"""Krum and multi-Krum: Blanchard, El Mhamdi, Guerraoui and Stainer 2017, "Machine Learning with Adversaries".

    score(i) = Σ |x_i - x_j|² over the n - f - 2 updates x_j that are nearest to x_i
    Krum: the update with the smallest score.   Multi-Krum: the mean of the n - f with the smallest scores.

Both need 2f + 2 < n.
"""

from dataclasses import dataclass

import numpy as np

from fedavg.errors import PlanError
from fedavg.robust.reducer import Case, Combination, Tolerant
from fedavg.robust.rows import Rows, squared_distances


@dataclass(frozen=True)
class Krum(Tolerant, Combination):
    """The one update that is nearest to its n - f - 2 neighbours.

    >>> str(Krum(0.3))
    'krum:0.3'
    """

    name = "krum"

    def tolerates(self, rows: int) -> int:
        return _tolerates(rows)

    def weights(self, rows: Rows, case: Case) -> np.ndarray:
        return mean_of(len(rows), best(rows, case.faults)[:1])


@dataclass(frozen=True)
class MultiKrum(Tolerant, Combination):
    """The mean of the `keep` updates with the smallest scores; n - f of them by default.

    >>> str(MultiKrum(0.3))
    'multikrum:0.3'
    """

    name = "multikrum"
    keep: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None and self.keep < 1:
            raise PlanError(f"multikrum: got keep={self.keep}; expected 1 or more updates to average, or none")

    def tolerates(self, rows: int) -> int:
        return _tolerates(rows)

    def weights(self, rows: Rows, case: Case) -> np.ndarray:
        keep = len(rows) - case.faults if self.keep is None else self.keep
        return mean_of(len(rows), best(rows, case.faults)[:keep])


def _tolerates(rows: int) -> int:
    return max((rows - 3) // 2, 0) if rows > 2 else -1


def best(rows: Rows, faults: int) -> np.ndarray:
    """The numbers of the rows by rising score; of equal scores the first row comes first."""
    nearest = np.sort(squared_distances(rows.gram), axis=1)
    scores = nearest[:, 1 : len(rows) - faults - 1].sum(axis=1)  # the nearest of all is the row itself
    return np.argsort(scores, kind="stable")


def mean_of(rows: int, chosen: np.ndarray) -> np.ndarray:
    """The weights that make the mean of the chosen rows."""
    weights = np.zeros(rows)
    weights[chosen] = 1 / len(chosen)
    return weights
