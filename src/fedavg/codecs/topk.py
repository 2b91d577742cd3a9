"""The k numbers of largest magnitude; the rest is kept in the sender's residual (Aji and Heafield 2017; Stich 2018)."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from fedavg.codecs.codec import Codec
from fedavg.codecs.golomb import decode_places, encode_places, max_place_bytes
from fedavg.errors import PlanError

#: One in this many numbers is sampled first, to estimate the k-th largest magnitude from below.
SAMPLE: Final = 64


@dataclass(frozen=True)
class TopK(Codec):
    """The `fraction` of the numbers with the largest magnitudes; the rest is kept for the next update.

    A frame has the values as float32, then their places, Golomb-coded.

    >>> str(TopK(0.05))
    'topk:0.05'
    """

    name = "topk"
    keeps_residual = True
    fraction: float = 0.01

    def __post_init__(self) -> None:
        check_fraction(self.name, self.fraction)

    def pack(self, values: np.ndarray, rng: np.random.Generator) -> bytes:
        places = largest_places(values, kept(self.fraction, len(values)))
        return bytes(values[places].astype("<f4")) + encode_places(places, len(values))

    def unpack(self, frame: bytes, size: int) -> np.ndarray:
        count = kept(self.fraction, size)
        if len(frame) < 4 * count:
            self.refuse(f"{len(frame)} bytes", f"at least {4 * count} for {count} values")
        vector = np.zeros(size, np.float32)
        vector[decode_places(frame[4 * count :], count, size)] = np.frombuffer(frame, "<f4", count)
        return vector

    def max_bytes(self, size: int) -> int:
        count = kept(self.fraction, size)
        return 4 * count + max_place_bytes(count, size)


def check_fraction(name: str, fraction: float) -> None:
    if not 1e-6 <= fraction <= 1:
        raise PlanError(f"{name}: the fraction is {fraction}; expected from 1e-6 to 1, as in '{name}:0.01'")


def kept(fraction: float, size: int) -> int:
    """k: at least one number, if there is any."""
    return min(size, max(1, round(fraction * size)))


def largest_places(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` largest magnitudes, rising, int64; of equal magnitudes the first."""
    magnitudes = np.abs(values)
    candidates = _candidates(magnitudes, count)
    if len(candidates) == count:
        return candidates
    found = magnitudes[candidates]
    least = np.partition(found, len(found) - count)[len(found) - count]
    above, equal = candidates[found > least], candidates[found == least]
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))


def _candidates(magnitudes: np.ndarray, count: int) -> np.ndarray:
    """Places, rising, that include all numbers as large as the count-th largest; few of them if a sample can tell."""
    sample = np.sort(magnitudes[::SAMPLE])[::-1]
    place = 2 * count * len(sample) // max(len(magnitudes), 1) + 8
    if place < len(sample):
        candidates = np.flatnonzero(magnitudes >= sample[place])
        if len(candidates) >= count:
            return candidates
    return np.arange(len(magnitudes))
