"""Inner-product manipulation: Xie, Koyejo and Gupta 2020, "Fall of Empires": the honest mean, reversed."""

from dataclasses import dataclass
from math import isfinite

import numpy as np

from fedavg.attacks.attack import Attack, View
from fedavg.attacks.search import DamageSearch, mean_weights, strongest
from fedavg.errors import PlanError


@dataclass(frozen=True)
class InnerProduct(Attack):
    """All liars send -tau times the mean of the honest updates of the round, which they see.

    >>> str(InnerProduct(0.5))
    'ipm:0.5'
    """

    name = "ipm"
    sees = "honest"
    tau: float = 2.0

    def __post_init__(self) -> None:
        if not isfinite(self.tau):
            raise PlanError(f"ipm: got tau={self.tau:g}; expected a finite number")

    def forge(self, view: View) -> np.ndarray:
        return view.honest.combined(-self.tau * mean_weights(len(view.honest))).astype(np.float32)


@dataclass(frozen=True)
class OptimalInnerProduct(DamageSearch, Attack):
    """The same with the tau, searched in each round, that moves the server's result furthest from the honest mean.

    Liars see the honest updates and know the server's defence.

    >>> str(OptimalInnerProduct())
    'optipm'
    """

    name = "optipm"
    sees = "honest"

    def forge(self, view: View) -> np.ndarray:
        mean = mean_weights(len(view.honest))
        tau = strongest(self, view, view.honest, lambda factor: -factor * mean)
        return InnerProduct(tau).forge(view)
