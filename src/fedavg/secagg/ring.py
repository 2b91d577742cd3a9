"""Real numbers as integers modulo 2^bits, so that a sum of masked vectors is exact and cannot overflow.

The rule: of n clients, none contributes more than L = floor((2^(bits-1) - 1) / n) to a coordinate, so their sum stays
within the ring's signed range. Each Δ is clipped to [-clip, clip], each weight to weight_cap, and n_k Δ_k is rounded
once to a multiple of 2^-f, with f the largest for which clip * weight_cap * 2^f <= L. The weight, the
metrics and the counts of what was clipped follow the vector as fixed-point numbers of 64 bits (32 of them fraction, as
in `fedavg.sums`), cut into digits so small that n of them add up without a carry out of the ring.

An encoding that `wraps` does not clip: a value beyond the range goes round the ring. That is for updates that carry a
share of the noise. If clipped, they would lose noise, and the sum would have less than promised; the sum of wrapped
values is the true sum modulo 2^bits, with all of its noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, isfinite
from typing import Any, Final

import numpy as np

from fedavg.errors import Diverged
from fedavg.secagg.errors import TermsError

BITS: Final = (16, 32, 64)
_SCALAR_BITS: Final = 64
_SCALAR_FRACTION: Final = 32
#: Added to a scalar before it is cut into digits, so that digits are never negative.
_OFFSET: Final = 1 << (_SCALAR_BITS - 1)
#: Elements handled at a time, so that the float64 scratch stays in the cache.
_BLOCK: Final = 1 << 15


@dataclass(frozen=True)
class Encoded:
    """One client's contribution as ring elements, and how much of it had to be clipped."""

    ring: np.ndarray
    saturated: int
    capped: bool


@dataclass(frozen=True)
class DecodedSum:
    """The sum over the surviving clients: Σ n_k Δ_k (float64), Σ n_k, weighted means of metrics, what was clipped."""

    vector: np.ndarray
    weight: float
    metrics: Mapping[str, float]
    count: int
    saturated: int
    capped: int


@dataclass(frozen=True)
class Encoding:
    """How `clients` weighted vectors of length `dimension` become ring elements."""

    clients: int
    dimension: int
    clip: float
    weight_cap: float
    metrics: tuple[str, ...] = ()
    bits: int = 32
    wraps: bool = False

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise TermsError(f"bits: got {self.bits}; expected one of {BITS}")
        if not 2 <= self.clients < 2**31 or not 0 <= self.dimension < 2**31:
            raise TermsError(
                f"{self.clients} clients x {self.dimension}: expected 2 clients or more, lengths below 2^31"
            )
        if not (0 < self.clip < 2**31 and 0 < self.weight_cap < 2**31):
            raise TermsError(f"clip {self.clip}, weight_cap {self.weight_cap}: expected both above 0 and below 2^31")
        if len(set(self.metrics)) < len(self.metrics):
            raise TermsError(f"metrics: got {self.metrics}; expected each name once")
        if not self.limit:
            raise TermsError(
                f"{self.clients} clients in {self.bits} bits leave each no ring unit; expected some: use more bits"
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"<u{self.bits // 8}")

    @cached_property
    def limit(self) -> int:
        """L: the largest magnitude of one client's coordinate."""
        return ((1 << (self.bits - 1)) - 1) // self.clients

    @cached_property
    def fraction_bits(self) -> int:
        """f: coordinates are multiples of 2^-f. Negative if even whole numbers are too fine for the ring."""
        room = self.limit - (self.limit >> 50)  # float64 rounds the product n_k Δ_k 2^f by less than this
        return _floor_log2(Fraction(room) / (Fraction(self.clip) * Fraction(self.weight_cap)))

    @cached_property
    def _digit_bits(self) -> int:
        """c with n (2^c - 1) < 2^bits: that many clients' digits add up without a carry out of the ring."""
        return (((1 << self.bits) - 1) // self.clients + 1).bit_length() - 1

    @property
    def _digits(self) -> int:
        return ceil(_SCALAR_BITS / self._digit_bits)

    @property
    def length(self) -> int:
        """Ring elements in all: the vector, then n_k, saturated, capped and each n_k * metric."""
        return self.dimension + (3 + len(self.metrics)) * self._digits

    def encode(self, vector: np.ndarray, weight: float, metrics: Mapping[str, float] | None = None) -> Encoded:
        """[n_k Δ_k, n_k, saturated, capped, n_k metric ...]; non-finite values are refused, clipped ones counted."""
        metrics = metrics or {}
        self._check(vector, weight, metrics)
        used = min(weight, self.weight_cap)
        ring = np.empty(self.length, self.dtype)
        saturated = self._encode_vector(vector, used, ring)
        weighted = [self._scalar(used * metrics[name]) for name in self.metrics]
        saturated += sum(clipped for _, clipped in weighted)
        capped = weight > self.weight_cap
        scalars = [self._scalar(value)[0] for value in (used, saturated, capped)] + [scalar for scalar, _ in weighted]
        ring[self.dimension :] = [digit for scalar in scalars for digit in self._cut(scalar)]
        return Encoded(ring, saturated, capped)

    def decode(self, ring: np.ndarray, count: int) -> DecodedSum:
        """The real numbers behind the sum of `count` encoded vectors."""
        if ring.dtype != self.dtype or ring.shape != (self.length,) or not 0 < count <= self.clients:
            raise ValueError(
                f"got {ring.dtype} {ring.shape} of {count}; expected {self.dtype} ({self.length},) of 1 or more"
            )
        vector = ring[: self.dimension].view(f"<i{self.bits // 8}") * 2.0**-self.fraction_bits
        digits = ring[self.dimension :].reshape(-1, self._digits).tolist()
        weight, saturated, capped, *weighted = (self._join(row, count) for row in digits)
        means = {name: total / weight if weight else 0.0 for name, total in zip(self.metrics, weighted, strict=True)}
        return DecodedSum(vector, weight, means, count, round(saturated), round(capped))

    def _check(self, vector: np.ndarray, weight: float, metrics: Mapping[str, float]) -> None:
        if vector.shape != (self.dimension,) or set(metrics) != set(self.metrics):
            raise ValueError(
                f"got shape {vector.shape} and metrics {sorted(metrics)}; "
                f"expected ({self.dimension},) and {sorted(self.metrics)}"
            )
        if not (isfinite(weight) and weight >= 0):
            raise ValueError(f"weight: got {weight}; expected a finite number, not negative")
        ends = [float(vector.min()), float(vector.max())] if self.dimension else []
        if not all(map(isfinite, [*ends, *metrics.values()])):
            raise Diverged("an update holds values that are not finite (NaN or infinity); expected finite numbers")

    def _encode_vector(self, vector: np.ndarray, weight: float, ring: np.ndarray) -> int:
        saturated = 0
        scratch = np.empty(min(_BLOCK, max(self.dimension, 1)), np.float64)
        factor = weight * 2.0**self.fraction_bits
        for start in range(0, self.dimension, _BLOCK):
            block = vector[start : start + _BLOCK]
            values = scratch[: len(block)]
            if self.wraps:
                values[:] = block
            else:
                np.clip(block, -self.clip, self.clip, out=values, dtype=np.float64)
                saturated += int(np.count_nonzero(values != block))
            np.rint(np.multiply(values, factor, out=values), out=values)
            if self.wraps:
                self._wrap(values)
            ring[start : start + len(block)] = values.astype(np.int64)  # a negative number wraps around the ring
        return saturated

    def _wrap(self, values: np.ndarray) -> None:
        """Wrap whole numbers into the ring's signed range, exactly: remainder and differences do not round here."""
        size = 2.0**self.bits
        np.fmod(values, size, out=values)
        values[values >= size / 2] -= size
        values[values < -size / 2] += size

    def _scalar(self, value: float) -> tuple[int, bool]:
        """Fixed point in 64 bits, and whether the value had to be clipped to fit."""
        scaled = round(Fraction(value) * 2**_SCALAR_FRACTION)
        clipped = min(max(scaled, -_OFFSET), _OFFSET - 1)
        return clipped, clipped != scaled

    def _cut(self, scalar: int) -> list[int]:
        shifted, mask = scalar + _OFFSET, (1 << self._digit_bits) - 1
        return [shifted >> (self._digit_bits * place) & mask for place in range(self._digits)]

    def _join(self, digits: list[int], count: int) -> float:
        total = sum(digit << (self._digit_bits * place) for place, digit in enumerate(digits)) - count * _OFFSET
        return total / (1 << _SCALAR_FRACTION)


def _floor_log2(value: Fraction) -> int:
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1
