"""Updates that are multiplied: reversed (Li et al. 2019, "RSA"), or enlarged (Bagdasaryan et al. 2020)."""

from dataclasses import dataclass
from math import inf

import numpy as np
from torch import Tensor

from fedavg.attacks.attack import Attack
from fedavg.errors import PlanError


@dataclass(frozen=True)
class SignFlip(Attack):
    """Each liar sends -`factor` times its own honest update. It knows only its own.

    (Liars that reverse the mean of all honest updates are `ipm:1`.)

    >>> str(SignFlip())
    'signflip'
    """

    name = "signflip"
    factor: float = 1.0

    def __post_init__(self) -> None:
        _check(self.name, self.factor)

    def on_update(self, vector: Tensor, rng: np.random.Generator) -> Tensor:
        return -self.factor * vector


@dataclass(frozen=True)
class Scaled(Attack):
    """Each liar sends `factor` times its own honest update. It knows only its own.

    >>> str(Scaled(20.0))
    'scaled:20.0'
    """

    name = "scaled"
    factor: float = 10.0

    def __post_init__(self) -> None:
        _check(self.name, self.factor)

    def on_update(self, vector: Tensor, rng: np.random.Generator) -> Tensor:
        return self.factor * vector


def _check(name: str, factor: float) -> None:
    if not 0 < factor < inf:
        raise PlanError(f"{name}: got a factor of {factor:g}; expected a finite number above 0")
