"""Updates that are not numbers. Liars know nothing; one such update spoils any sum that it gets into."""

from dataclasses import dataclass
from math import inf, nan

import numpy as np
import torch
from torch import Tensor

from fedavg.attacks.attack import Attack


@dataclass(frozen=True)
class NaNs(Attack):
    """Liars send NaN at every place. They need to know nothing.

    >>> str(NaNs())
    'nan'
    """

    name = "nan"
    finite = False

    def on_update(self, vector: Tensor, rng: np.random.Generator) -> Tensor:
        return torch.full_like(vector, nan)


@dataclass(frozen=True)
class Infinities(Attack):
    """Liars send infinity at every place. They need to know nothing.

    >>> str(Infinities())
    'inf'
    """

    name = "inf"
    finite = False

    def on_update(self, vector: Tensor, rng: np.random.Generator) -> Tensor:
        return torch.full_like(vector, inf)
