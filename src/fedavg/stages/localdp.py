"""Local differential privacy: each client clips and noises its own update before anyone else sees it.

    localdp:8:1.0:delta=1e-5        every update is (8, 1e-5)-private by itself, clipped to norm 1.0

As in NbAFL (Wei et al. 2020) the noise is Gaussian and calibrated on the client, here to the whole of its data: any two
updates are within 2·norm of each other. The calibration is the exact one (Balle and Wang 2018), since the classic
formula holds only for epsilon below 1. NbAFL's second noise, on what the server sends, is left out: the broadcast is a
function of updates that are already private.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from fedavg.errors import PlanError
from fedavg.stages.clip import shortened
from fedavg.stages.stage import Mechanism, Stage
from fedavg.types import Update, Work


@dataclass(frozen=True)
class LocalDP(Stage):
    """Every client makes its own update private before it sends it.

    >>> str(LocalDP(8, 1.0))
    'localdp:8:1.0'
    """

    epsilon: float
    norm: float
    delta: float = 1e-5
    exceeds_bounds = True
    hides_metrics = True

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < 1e6 and 0 < self.norm < 1e18 and 0 < self.delta < 1):
            raise PlanError(
                f"localdp: got epsilon {self.epsilon}, norm {self.norm}, delta {self.delta}; expected numbers above 0 "
                "and a delta below 1, as in 'localdp:8:1.0:delta=1e-5'"
            )

    @property
    def multiplier(self) -> float:
        """The noise's standard deviation over the norm. Any two updates differ by at most twice the norm."""
        return 2 * _sigma(self.epsilon, self.delta)

    @property
    def mechanism(self) -> Mechanism:
        return Mechanism("gaussian, each client by itself", self.multiplier, "each")

    def on_client(self, update: Update, work: Work, rng: np.random.Generator) -> Update:
        vector = shortened(update.vector, self.norm)
        noise = torch.from_numpy(rng.standard_normal(len(vector))).mul_(self.multiplier * self.norm)
        return replace(update, vector=(vector.double() + noise).float(), metrics={})


@lru_cache
def _sigma(epsilon: float, delta: float) -> float:
    from fedavg.dp.accounting import gaussian_sigma

    return gaussian_sigma(epsilon, delta)
