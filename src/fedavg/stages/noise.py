"""Gaussian noise on the sum, z times the most that one client can change it: with `clip` and `weigh` this is DP-FedAvg.

    noise:1.1                       the server adds it to the sum that it has seen
    noise:1.1:where=clients         each client adds its share, so that nobody sees a sum without noise
    noise:1.1:where=clients:dropout=0.2   the shares are large enough if a fifth of the clients is lost
    noise:1.1:bits=16               all in multiples of 2^-16: discrete Gaussian noise, exact in a ring of integers

If more clients are lost than the shares were made for, a simulated server adds the missing noise; over the network,
devices do not open such a sum. With `bits`, clients round to the grid, which can lengthen an update of P numbers by
half a step times √P: the noise covers that too. A sum of discrete Gaussians is not exactly a discrete Gaussian, but
indistinguishable from one at a standard deviation of a few steps (Kairouz et al. 2021).
"""

from dataclasses import dataclass, replace
from math import ceil, isfinite, sqrt
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedavg.dp.discrete import discrete_gaussian
from fedavg.errors import Diverged, PlanError
from fedavg.specs import bound
from fedavg.stages.stage import Mechanism, Stage, Whole
from fedavg.types import Sum, Update, Work

#: float32 represents every whole number up to this one.
_WHOLE: Final = 2**24


@dataclass(frozen=True)
class Noise(Stage):
    """Gaussian noise on the sum: `multiplier` times the most that one client can change it.

    >>> str(Noise(1.1))
    'noise:1.1'
    """

    hides_metrics = True
    multiplier: float
    where: str = "server"
    dropout: float = 0.0
    bits: int = 0
    clip: Stage | None = bound(None)
    cohort: int = bound(0)

    def __post_init__(self) -> None:
        if not (isfinite(self.multiplier) and self.multiplier > 0):
            raise PlanError(f"noise: the multiplier is {self.multiplier}; expected a number above 0, as in 'noise:1.1'")
        if self.where not in ("server", "clients"):
            raise PlanError(f"noise: where is '{self.where}'; expected 'server' or 'clients'")
        if not 0 <= self.dropout < 1 or not 0 <= self.bits <= 22:
            raise PlanError("noise: expected dropout from 0 to below 1, and bits from 0 (continuous noise) to 22")

    @property
    def exceeds_bounds(self) -> bool:  # type: ignore[override]
        return self.where == "clients" or self.bits > 0

    @property
    def mechanism(self) -> Mechanism:
        name = f"{'discrete gaussian' if self.bits else 'gaussian'}, {self.where}"
        return Mechanism(name, self.multiplier, "clients" if self.where == "clients" else "server", self.bits)

    def bind(self, whole: Whole) -> "Noise":
        """Find the bound on what a client can change; a plan without one is refused."""
        bounds = [stage.bind(whole) for stage in whole.stages if stage.bounds]
        return replace(self, clip=bounds[-1], cohort=whole.cohort_size) if bounds else self

    def on_client(self, update: Update, work: Work, rng: np.random.Generator) -> Update:
        """Add the client's share of the noise, if clients add it. Metrics are not noised, so they are not sent."""
        vector = self._on_grid(update.vector)
        if self.where == "clients":
            share = self.share(work, len(vector))
            # The sum adds weight times vector, so the noise is divided by the weight.
            vector = vector + (self._draw(share, len(vector), rng) / update.weight).float()
        return replace(update, vector=vector, metrics={})

    def on_sum(self, total: Sum, work: Work, rng: np.random.Generator) -> Sum:
        present = min(total.count / self._shares, 1.0) if self.where == "clients" else 0.0
        if present == 1.0:
            return total
        std = self._std(work, len(total.vector)) * (1 - present) ** 0.5
        return replace(total, vector=total.vector + self._draw(std, len(total.vector), rng))

    def share(self, work: Work, size: int) -> float:
        return self._std(work, size) / sqrt(self._shares)

    @property
    def least(self) -> int:
        return ceil(self._shares - 1e-9)

    @property
    def _shares(self) -> float:
        """How many clients' shares make up the whole noise."""
        return max(self.cohort * (1 - self.dropout), 1.0)

    def _std(self, work: Work, size: int) -> float:
        """The standard deviation on the sum."""
        assert self.clip, "a plan with noise and no clip is refused"
        rounding = 2.0**-self.bits * size**0.5 / 2 if self.bits else 0.0
        return self.multiplier * (self.clip.sensitivity(work) + rounding)

    def _draw(self, std: float, size: int, rng: np.random.Generator) -> Tensor:
        if not self.bits:
            return torch.from_numpy(rng.standard_normal(size)).mul_(std)
        step = 2.0**-self.bits
        return torch.from_numpy(discrete_gaussian(std / step, size, rng)).double().mul_(step)

    def _on_grid(self, vector: Tensor) -> Tensor:
        """Round to multiples of 2^-bits, all of which float32 and the sum represent exactly."""
        if not self.bits:
            return vector
        units = torch.round(vector.double() * 2.0**self.bits)
        if float(units.abs().max()) >= _WHOLE / 2:
            raise Diverged(f"noise: a number of an update has more than 24 bits at bits={self.bits}; use fewer bits")
        return (units * 2.0**-self.bits).float()
