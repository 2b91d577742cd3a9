"""Bound the influence of any one client: scale its change down to an L2 norm of at most `norm`."""

from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from fedavg.errors import PlanError
from fedavg.stages.stage import Stage
from fedavg.types import Update, Work


@dataclass(frozen=True)
class Clip(Stage):
    norm: float

    def __post_init__(self) -> None:
        if not (isfinite(self.norm) and self.norm > 0):
            raise PlanError(f"clip: the norm is {self.norm}; expected a finite number above 0, as in 'clip:1.0'")

    def on_client(self, update: Update, work: Work, rng: np.random.Generator) -> Update:
        norm = float(update.vector.double().norm())
        return update if norm <= self.norm else replace(update, vector=update.vector * (self.norm / norm))
