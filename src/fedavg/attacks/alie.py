"""A little is enough: Baruch, Baruch and Goldberg 2019: the honest mean, moved by a little of the spread."""

from dataclasses import dataclass
from math import isfinite

import numpy as np

from fedavg.attacks.attack import Attack, View
from fedavg.attacks.search import DamageSearch, mean_weights, strongest
from fedavg.errors import PlanError
from fedavg.robust import Rows


@dataclass(frozen=True)
class LittleIsEnough(Attack):
    """All liars send mean + tau times the standard deviation of the honest updates, coordinate by coordinate.

    They see the honest updates.

    >>> str(LittleIsEnough(1.0))
    'alie:1.0'
    """

    name = "alie"
    sees = "honest"
    tau: float = 1.5

    def __post_init__(self) -> None:
        if not isfinite(self.tau):
            raise PlanError(f"alie: got tau={self.tau:g}; expected a finite number")

    def forge(self, view: View) -> np.ndarray:
        mean = view.honest.combined(mean_weights(len(view.honest)))
        return (mean + self.tau * deviation(view.honest)).astype(np.float32)


@dataclass(frozen=True)
class OptimalLittleIsEnough(DamageSearch, Attack):
    """The same with the tau, searched in each round, that moves the server's result furthest from the honest mean.

    Liars see the honest updates and know the server's defence.

    >>> str(OptimalLittleIsEnough())
    'optalie'
    """

    name = "optalie"
    sees = "honest"

    def forge(self, view: View) -> np.ndarray:
        wide = view.honest.extended(deviation(view.honest))
        mean = np.append(mean_weights(len(view.honest)), 0.0)
        spread = np.append(np.zeros(len(view.honest)), 1.0)
        tau = strongest(self, view, wide, lambda factor: mean + factor * spread)
        return wide.combined(mean + tau * spread).astype(np.float32)


def deviation(rows: Rows) -> np.ndarray:
    """The standard deviation of each coordinate, shape (P,), float32; zeros for a single row."""
    total = np.zeros(rows.size, np.float32)
    if len(rows) > 1:
        for place, tile in rows.tiles():
            total[place] = tile.std(axis=0, ddof=1, dtype=np.float64)
    return total
