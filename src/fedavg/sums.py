"""Exact weighted sums: the same bits whatever the order of the updates and the number of workers.

Floating-point addition depends on its order; integer addition does not. Each n_k Δ_k is rounded once to a multiple of
2^-32 and added in int64 (the ring that secure aggregation also needs). The sum takes constant memory, and an overflow
is detected before it happens.
"""

from ctypes import byref, c_double, c_long, c_void_p
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedavg import native
from fedavg.errors import Diverged

FRACTION_BITS: Final = 32
SCALE: Final = 2.0**FRACTION_BITS
LIMIT: Final = 2**63
SOURCE: Final = Path(__file__).with_suffix(".c")
#: Elements handled at a time, so that the float64 scratch stays in the cache.
BLOCK: Final = 1 << 16
#: Below 2^51, adding a float64 to this rounds it to the nearest integer, ties to even; the bits of the result minus the
#: bits of this are that integer. NumPy converts float64 to int64 one by one, but adds with vector instructions.
ROUNDER: Final = 1.5 * 2.0**52
ROUNDER_BITS: Final = int(np.float64(ROUNDER).view(np.int64))
ROUNDED_BY_ADDING: Final = 2.0**51
#: Between these, a sum of squares in float32 has lost nothing that matters.
LEAST_SQUARES, MOST_SQUARES = 1e-25, 1e37


class TooLarge(Diverged):
    """An update so large that it would leave no room for others in the sum."""


class ExactSum:
    """Adds weighted vectors into `ring`, an int64 tensor of shape (P,) that may be shared memory.

    With n `sharers`, no vector may use more than one n-th of the ring's range, so that there is room for all.
    """

    def __init__(self, ring: Tensor, sharers: int = 1) -> None:
        self._ring, self._ring_at = ring.numpy(), c_void_p(ring.data_ptr())
        self._share = (LIMIT - 1) // sharers
        self._scaled = np.empty(BLOCK, np.float64)
        self._kernel = native.library(SOURCE)  # found once, before a process is forked
        self.reset()

    def reset(self) -> None:
        self._ring.fill(0)
        #: No element of the ring is larger than this.
        self.bound = 0

    def add(self, vector: Tensor, weight: float, largest: float | None = None) -> float:
        """Add weight * vector; a vector (float32, on the CPU) that is not finite or too large is refused as a whole.

        `largest` is its largest magnitude, if the caller knows it. Returns the largest magnitude that was added.
        """
        if largest is None:
            largest = max(abs(float(end)) for end in vector.aminmax())
        self.bound = self._checked(largest, weight)
        self._add(vector.contiguous(), weight * SCALE, largest * weight * SCALE)
        return largest * weight

    def look_and_add(self, vector: Tensor, weight: float, signs: np.ndarray, width: int) -> "Look":
        """What `look` finds, and then the same as `add`: in C in one pass, row by row."""
        kernel = self._kernel
        if kernel is None:
            found = look(vector, signs, width)
            self.add(vector, weight, found.largest)
            return found
        vector, limits = vector.contiguous(), (c_double * 3)(weight * SCALE, self._share, 0)
        found = _looked(kernel.look_and_add, vector, signs, width, limits, self._ring_at)
        try:
            self.bound = self._checked(found.largest, weight)
        except Diverged:  # what was added before the pass came to the fault is taken back, bit by bit
            kernel.add(c_long(int(limits[2])), *_numbers(vector, -weight * SCALE), self._ring_at)
            raise
        return found

    def _checked(self, largest: float, weight: float) -> int:
        """The bound of the sum with a vector that has such a largest magnitude, which may be refused."""
        if not isfinite(largest):
            raise Diverged("an update holds values that are not finite (NaN or infinity); expected finite numbers")
        if largest * weight * SCALE > self._share:
            raise TooLarge(
                f"a weighted update reaches {largest * weight:.3g}; expected at most {self._share / SCALE:.3g}, its "
                "share of what a sum can hold"
            )
        return checked_bound(self.bound, int(largest * weight * SCALE) + 1)

    def _add(self, vector: Tensor, scale: float, largest: float) -> None:
        """In C where available: one pass instead of four, and the same bits."""
        if self._kernel:
            self._kernel.add(c_long(len(vector)), *_numbers(vector, scale), self._ring_at)
            return
        values = vector.numpy()
        for start in range(0, len(values), BLOCK):
            block = values[start : start + BLOCK]
            scaled = self._scaled[: len(block)]
            rounded = scaled.view(np.int64)
            np.copyto(scaled, block)
            scaled *= scale
            if largest < ROUNDED_BY_ADDING:
                scaled += ROUNDER
                rounded -= ROUNDER_BITS
            else:
                np.copyto(rounded, np.rint(scaled, out=scaled), casting="unsafe")
            self._ring[start : start + BLOCK] += rounded


@dataclass(frozen=True)
class Look:
    """What one pass over a vector finds: its largest magnitude, which is not finite if any number is not; its L2 norm;
    and the column sums of its numbers times signs, in rows of some width, shape (width,) float32."""

    largest: float
    norm: float
    folded: np.ndarray


def look(vector: Tensor, signs: np.ndarray, width: int) -> Look:
    """Makes one pass over a vector, shape (P,) float32; in C where available.

    `signs`, shape (P,), best of `sign_type`, are 1 or -1.
    """
    built = native.library(SOURCE)
    if built is not None:
        return _looked(built.look, vector.contiguous(), signs, width)
    largest = max(abs(float(end)) for end in vector.aminmax()) if len(vector) else 0.0
    return Look(largest, sqrt(_squares(vector)), _folded(vector.numpy(), signs, width))


def sign_type() -> type:
    """The type of signs that `look` takes without a conversion here."""
    return np.float32 if native.library(SOURCE) is None else np.int8


def _looked(kernel: Any, vector: Tensor, signs: np.ndarray, width: int, *more: Any) -> Look:
    folded, told = np.empty(width, np.float32), (c_double * 2)()
    count, columns, signs = c_long(len(vector)), c_long(width), signs.astype(np.int8, copy=False)
    kernel(count, c_void_p(vector.data_ptr()), _at(signs), columns, _at(folded), told, *more)
    return Look(told[0], sqrt(told[1]), folded)


def _numbers(vector: Tensor, scale: float) -> tuple[Any, Any]:
    return c_void_p(vector.data_ptr()), byref(c_double(scale))


def _squares(vector: Tensor) -> float:
    """The sum of squares: in float32, and in float64 where float32 would lose precision."""
    squares = float(torch.dot(vector, vector))
    return squares if LEAST_SQUARES < squares < MOST_SQUARES else float(vector.double().square().sum())


def _folded(values: np.ndarray, signs: np.ndarray, width: int) -> np.ndarray:
    whole = len(values) // width * width
    rows, row_signs = values[:whole].reshape(-1, width), signs[:whole].reshape(-1, width)
    folded: np.ndarray = np.einsum("ij,ij->j", rows, row_signs.astype(np.float32, copy=False))
    folded[: len(values) - whole] += values[whole:] * signs[whole:]
    return folded


def _at(array: np.ndarray) -> c_void_p:
    return c_void_p(array.__array_interface__["data"][0])  # `array.ctypes` makes more objects


def checked_bound(a: int, b: int) -> int:
    """The bound of a sum of two rings, if it fits in int64."""
    if a + b >= LIMIT:
        raise Diverged(
            f"the weighted sum of updates may reach {(a + b) / SCALE:.3g}; expected less than {LIMIT / SCALE:.3g}"
        )
    return a + b


def to_float(ring: Tensor) -> Tensor:
    """The real numbers, float64, that a ring represents."""
    return ring.to(torch.float64).mul_(1 / SCALE)
