"""Bound the influence of any one client: scale its change down to an L2 norm of at most `norm`.

    clip:1.0                    the whole change at once
    clip:1.0:per=layer          each of L layers to norm/√L, so the whole to the norm too (McMahan et al. 2018)
    clip:0.1:quantile=0.5       the norm follows that quantile of the clients' norms (Andrew et al. 2021)

With a quantile, `norm` is where it starts. Every client appends one number to its update, which says whether it was
within the norm, so that the count is summed, masked and noised together with the rest. From the noised fraction b:
norm ← norm · exp(-rate (b - quantile)).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from math import exp, hypot, inf, isfinite, sqrt
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedavg.errors import PlanError
from fedavg.specs import bound
from fedavg.stages.stage import Stage, Whole
from fedavg.types import Slots, Sum, Update, Work

#: The name under which the server keeps the adaptive norm and sends it to the clients.
NORM: Final = "clip_norm"
_BELOW: Final = "clip.below"
#: float32 rounds each number by at most 2^-24 of itself: a vector scaled to just within the bound stays within it.
_WITHIN: Final = 1 - 2**-22


@dataclass(frozen=True)
class Clip(Stage):
    """Bounds the influence of any one client: its change is scaled down to an L2 norm of at most `norm`.

    >>> str(Clip(1.0, quantile=0.5))
    'clip:1.0:quantile=0.5'
    """

    bounds = True
    norm: float
    per: str = "all"
    quantile: float = 0.0
    rate: float = 0.2
    #: Standard deviation of the noise on the count of clients within the norm [a twentieth of the cohort, at least z].
    bits_noise: float = 0.0
    layers: tuple[tuple[int, int], ...] = bound(())
    #: z, the noise multiplier with which count and change together are charged; 0 without noise.
    multiplier: float = bound(0.0)
    #: True if updates still obey the bound when they arrive, so that the server can enforce it again.
    enforced: bool = bound(False)
    #: The least and the largest norm that a quantile may lead to: what a ring can hold together with the noise.
    norms: tuple[float, float] = bound((0.0, inf))

    def __post_init__(self) -> None:
        if not (isfinite(self.norm) and self.norm > 0):
            raise PlanError(f"clip: the norm is {self.norm}; expected a finite number above 0, as in 'clip:1.0'")
        if self.per not in ("all", "layer"):
            raise PlanError(f"clip: per is '{self.per}'; expected 'all' or 'layer'")
        if not (0 <= self.quantile < 1 and isfinite(self.rate) and self.rate > 0 and 0 <= self.bits_noise < 1e9):
            raise PlanError("clip: expected a quantile from 0 to below 1, a rate above 0, and bits_noise of at least 0")
        if self.adapts and self.per == "layer":
            raise PlanError("clip: got both a quantile and per=layer; expected one of them: one count, one norm")

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        return self.quantile > 0

    @property
    def appends(self) -> int:  # type: ignore[override]
        return int(self.adapts)

    def held_within(self, least: float, largest: float) -> "Clip":
        return replace(self, norms=(self.norm * min(least, 1.0), self.norm * max(largest, 1.0)))

    def bind(self, whole: Whole) -> "Clip":
        layers = _layers(whole) if self.per == "layer" else ()
        multiplier = whole.noise_multiplier if self.adapts else 0.0
        noise = self.bits_noise or (max(whole.cohort_size / 20, multiplier) if multiplier else 0.0)
        if self.adapts and multiplier and noise <= multiplier / 2:
            raise PlanError(
                f"clip: bits_noise is {noise:g}; expected more than half of the noise multiplier {multiplier:g}: "
                "the count alone would cost more than the round may"
            )
        enforced = not any(stage.exceeds_bounds for stage in whole.stages)
        return replace(self, layers=layers, multiplier=multiplier, bits_noise=noise, enforced=enforced)

    def sensitivity(self, work: Work) -> float:
        """The L2 norm that no update exceeds, including what is appended to it.

        Noise of z times this on all of (Δ, c(b - ½)) is noise of z_Δ S on the change and of bits_noise on the count,
        with z_Δ = (z⁻² - (2 bits_noise)⁻²)^-½: the split of Andrew et al. 2021, Theorem 1.
        """
        if not self.adapts:
            return self.norm
        return hypot(self._norm(work), self._unit(work) / 2)

    def on_client(self, update: Update, work: Work, rng: np.random.Generator) -> Update:
        least, largest = self.norms
        if not least <= self._norm(work) <= largest:
            raise PlanError(
                f"clip: the round's norm is {self._norm(work):g}; expected {least:g} to {largest:g}: with another, "
                "noise would be lost in the ring"
            )
        vector = self._clipped(update.vector, work)
        if not self.adapts:
            return replace(update, vector=vector)
        within = 0.5 if _length(update.vector) <= self._norm(work) else -0.5
        return replace(update, vector=torch.cat([vector, torch.tensor([within * self._unit(work)])]))

    def on_arrival(self, update: Update, work: Work) -> Update:
        if not self.enforced:
            return update
        if not self.adapts:
            return replace(update, vector=self._clipped(update.vector, work))
        half = self._unit(work) / 2
        parts = [self._clipped(update.vector[:-1], work), update.vector[-1:].clamp(-half, half)]
        return replace(update, vector=torch.cat(parts))

    def on_sum(self, total: Sum, work: Work, rng: np.random.Generator) -> Sum:
        if not self.adapts:
            return total
        below = float(total.vector[-1]) / self._unit(work)
        return replace(total, vector=total.vector[:-1], metrics={**total.metrics, _BELOW: below})

    def initial(self) -> Slots:
        return _kept(self.norm) if self.adapts else {}

    def settings(self, slots: Slots) -> Mapping[str, float]:
        return {NORM: float(slots[NORM])} if self.adapts else {}

    def after(self, slots: Slots, total: Sum, work: Work) -> Slots:
        if not self.adapts:
            return slots
        fraction = total.metrics[_BELOW] / total.weight + 0.5
        least, largest = self.norms
        norm = self._norm(work) * exp(-self.rate * (fraction - self.quantile))
        return _kept(min(max(norm, least), largest))

    def _norm(self, work: Work) -> float:
        return work.settings[NORM] if self.adapts else self.norm

    def _unit(self, work: Work) -> float:
        """c: what one client within the norm is worth in the appended number."""
        if not self.multiplier:
            return self._norm(work)
        on_change = 1 / sqrt(self.multiplier**-2 - (2 * self.bits_noise) ** -2)
        return on_change * self._norm(work) / self.bits_noise

    def _clipped(self, vector: Tensor, work: Work) -> Tensor:
        if not self.layers:
            return shortened(vector, self._norm(work))
        each = self.norm / len(self.layers) ** 0.5
        return torch.cat([shortened(vector[start:end], each) for start, end in self.layers])


def _kept(norm: float) -> Slots:
    return {NORM: torch.tensor(norm, dtype=torch.float64)}


def shortened(vector: Tensor, norm: float) -> Tensor:
    """The vector itself, or scaled down to the norm."""
    length = _length(vector)
    return vector if length <= norm else vector * (norm / length * _WITHIN)


def _length(vector: Tensor) -> float:
    return float(vector.double().norm())


def _layers(whole: Whole) -> tuple[tuple[int, int], ...]:
    """Where each module's numbers begin and end in an update."""
    from fedavg.engine.model import Model

    slots = Model(whole.task, 0).slots
    ends = [(slot.name.rpartition(".")[0], slot.offset, slot.offset + slot.shape.numel()) for slot in slots]
    groups = [list(group) for _, group in groupby(ends, key=lambda end: end[0])]
    once = [(group[0][1], group[-1][2]) for group in groups]
    size = once[-1][1]
    copies = range(whole.vectors_up)
    return tuple((copy * size + start, copy * size + end) for copy in copies for start, end in once)
