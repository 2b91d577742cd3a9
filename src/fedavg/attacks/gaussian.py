"""Random updates (Blanchard et al. 2017, §5)."""

from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from fedavg.attacks.attack import Attack
from fedavg.errors import PlanError


@dataclass(frozen=True)
class Gaussian(Attack):
    """Liars send independent numbers of the normal distribution. They need to know nothing.

    >>> str(Gaussian(sigma=10.0))
    'gaussian:10.0'
    """

    name = "gaussian"
    sigma: float = 1.0
    mu: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.sigma < inf and abs(self.mu) < inf):
            raise PlanError(f"gaussian: got sigma={self.sigma:g}, mu={self.mu:g}; expected finite, sigma of 0 or more")

    def on_update(self, vector: Tensor, rng: np.random.Generator) -> Tensor:
        drawn = rng.standard_normal(len(vector), dtype=np.float32)
        return torch.from_numpy(drawn * np.float32(self.sigma) + np.float32(self.mu))
