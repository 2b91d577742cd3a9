"""Clients that want the model and do no work: Lin, Du and Liu 2019, "Free-riders in Federated Learning"."""

from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from fedavg.attacks.attack import Attack
from fedavg.errors import PlanError


@dataclass(frozen=True)
class FreeRider(Attack):
    """Each liar sends back the model it was given: no change, with noise of `sigma` that looks like work.

    It knows nothing but the model, and counts for its n_k like everyone.

    >>> str(FreeRider(0.001))
    'freerider:0.001'
    """

    name = "freerider"
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < inf:
            raise PlanError(f"freerider: got sigma={self.sigma:g}; expected a finite number of 0 or more")

    def on_update(self, vector: Tensor, rng: np.random.Generator) -> Tensor:
        if not self.sigma:
            return torch.zeros_like(vector)
        return torch.from_numpy(rng.standard_normal(len(vector), dtype=np.float32) * np.float32(self.sigma))
