"""Probabilistic quantisation after a random rotation (Konečný et al. 2016, §3; Suresh et al. 2017, §2 and §3).

In each block of numbers, 2^bits levels are evenly spaced from the least to the largest, and x is rounded at random to
one of the two nearest, so that its expectation is x. The error grows with the block's range; the rotation HD (random
signs D, drawn from a seed that is sent, then the Walsh-Hadamard transform H) makes the range small for any vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedavg.codecs.bits import SEED_BYTES, coins, draw_seed, words
from fedavg.codecs.codec import Codec
from fedavg.errors import PlanError

#: Numbers in a block: each block costs two float32 of overhead, and the transform takes log2 of this many passes.
BLOCK: Final = 4096
#: Blocks that are transformed together: few enough to stay in the cache, enough to fill vector instructions.
TOGETHER: Final = 32


@dataclass(frozen=True)
class Quantise(Codec):
    """Each number rounded at random to `bits` bits (1, 2, 4 or 8), after a random rotation; unbiased.

    A frame has the seed, the least and the largest number of every block, then all levels at `bits` bits. Blocks are
    columns side by side, up to `TOGETHER` at a time; the vector is padded to whole blocks with its last number.

    >>> str(Quantise(4))
    'quantise:4'
    """

    name = "quantise"
    bits: int = 8
    rotate: bool = True

    def __post_init__(self) -> None:
        if self.bits not in (1, 2, 4, 8):
            raise PlanError(f"quantise: got {self.bits} bits; expected 1, 2, 4 or 8, as in 'quantise:4'")

    def pack(self, values: np.ndarray, rng: np.random.Generator) -> bytes:
        seed = draw_seed(rng)
        rows, columns = _layout(len(values))
        padded = np.pad(values, (0, rows * columns - len(values)), "edge") if rows else values
        if self.rotate:
            padded = _flip(padded, seed)
        levels = np.empty(rows * columns, np.uint8)
        ends = np.empty((columns, 2), np.float32)
        noise = words(draw_seed(rng), -(-rows * columns // 2)).view("<u2")
        for run, blocks in _runs(rows, columns):
            x = padded[run].reshape(rows, -1)
            x = _hadamard(x) if self.rotate else x
            ends[blocks, 0], ends[blocks, 1] = _least(x), -_least(-x)
            levels[run] = self._rounded(x, ends[blocks], noise[run].reshape(rows, -1)).reshape(-1)
        return seed + ends.astype("<f4", copy=False).tobytes() + _packed(levels, self.bits)

    def unpack(self, frame: bytes, size: int) -> np.ndarray:
        self.check_length(frame, self.max_bytes(size), size)
        rows, columns = _layout(size)
        seed, header = frame[:SEED_BYTES], SEED_BYTES + 8 * columns
        ends = np.frombuffer(frame[SEED_BYTES:header], "<f4").reshape(columns, 2)
        if not (np.isfinite(ends).all() and (ends[:, 0] <= ends[:, 1]).all()):
            self.refuse("blocks whose ends are not finite or not in order", "finite numbers, the least first")
        levels = _unpacked(frame[header:], self.bits, rows * columns)
        vector = np.empty(rows * columns, np.float32)
        for run, blocks in _runs(rows, columns):
            x = levels[run].reshape(rows, -1) * self._steps(ends[blocks])
            x += ends[blocks, 0]
            vector[run] = (_hadamard(x) if self.rotate else x).reshape(-1)
        return (_flip(vector, seed) / np.float32(rows) if self.rotate else vector)[:size]

    def max_bytes(self, size: int) -> int:
        rows, columns = _layout(size)
        return SEED_BYTES + 8 * columns + -(-rows * columns * self.bits // 8)

    def frame_bytes(self, size: int) -> int:
        return self.max_bytes(size)

    def _steps(self, ends: np.ndarray) -> np.ndarray:
        """The distance between the levels of each block."""
        steps: np.ndarray = (ends[:, 1] - ends[:, 0]) / np.float32(2**self.bits - 1)
        return steps

    def _rounded(self, x: np.ndarray, ends: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Levels, float32: up with the probability that makes the expectation exact, else down."""
        steps = self._steps(ends)
        place: np.ndarray = (x - ends[:, 0]) / np.where(steps > 0, steps, 1)
        place += np.multiply(noise, np.float32(2.0**-16), dtype=np.float32)  # as fine as the float32 it is added to
        np.clip(place, 0, 2**self.bits - 1, out=place)
        return place  # the cast to whole numbers takes the floor


def _layout(size: int) -> tuple[int, int]:
    """Numbers in a block, a power of two, and how many blocks a vector fills."""
    if not size:
        return 0, 0
    rows = min(BLOCK, 1 << (size - 1).bit_length())
    return rows, -(-size // rows)


def _runs(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """The runs of the vector that are transformed together, and which blocks are in each."""
    for first in range(0, columns, TOGETHER):
        last = min(first + TOGETHER, columns)
        yield slice(first * rows, last * rows), slice(first, last)


def _flip(values: np.ndarray, seed: bytes) -> np.ndarray:
    """D v: flips the signs that the seed selects."""
    return (values.view(np.uint32) ^ (coins(seed, len(values)).astype(np.uint32) << 31)).view(np.float32)


def _hadamard(x: np.ndarray) -> np.ndarray:
    """H x for every column, H of +1 and -1: symmetric, and H H = rows I, so that it undoes itself up to a power of two.

    It uses sums and differences in a fixed order, no matrix product, so that both ends round the same way.
    """
    rows, columns = x.shape
    buffers = np.empty_like(x), np.empty_like(x)
    for step in range(rows.bit_length() - 1):
        pairs = x.reshape(-1, 2, columns << step)
        sums = buffers[step % 2].reshape(pairs.shape)
        np.add(pairs[:, 0], pairs[:, 1], out=sums[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=sums[:, 1])
        x = sums
    return x.reshape(rows, columns)


def _least(x: np.ndarray) -> np.ndarray:
    """The least of every column. Halving the rows works on long stretches of memory, unlike numpy's own reduction."""
    while len(x) > 1:
        x = np.minimum(x[: len(x) // 2], x[len(x) // 2 :])
    return x.reshape(-1)


def _packed(levels: np.ndarray, bits: int) -> bytes:
    """Levels at `bits` bits, packed into bytes from the low end."""
    if bits == 1:
        return np.packbits(levels, bitorder="little").tobytes()
    share = 8 // bits
    levels = np.pad(levels, (0, -len(levels) % share))
    packed = levels[::share].copy()
    for place in range(1, share):
        packed |= levels[place::share] << (bits * place)
    return packed.tobytes()


def _unpacked(data: bytes, bits: int, count: int) -> np.ndarray:
    packed = np.frombuffer(data, np.uint8)
    if bits == 1:
        return np.unpackbits(packed, count=count, bitorder="little")
    share = 8 // bits
    levels = np.empty((len(packed), share), np.uint8)
    for place in range(share):
        levels[:, place] = (packed >> (bits * place)) & (2**bits - 1)
    return levels.reshape(-1)[:count]
