"""A random mask (Konečný et al. 2016, §2 and §3): a random few of the numbers, and the seed that says which.

Both ends draw the mask from the seed, so no places are sent. If unbiased, the numbers are divided by the fraction, and
their expectation is the vector. Otherwise they are sent unchanged and the rest is kept in the sender's residual.
"""

from dataclasses import dataclass

import numpy as np

from fedavg.codecs.bits import SEED_BYTES, draw_seed, words
from fedavg.codecs.codec import Codec
from fedavg.codecs.topk import check_fraction


@dataclass(frozen=True)
class Mask(Codec):
    """A random `fraction` of the numbers, and the seed that says which.

    A frame has the seed, then the chosen numbers as float32.

    >>> str(Mask(0.1))
    'mask:0.1'
    """

    name = "mask"
    fraction: float = 0.05
    unbiased: bool = True

    def __post_init__(self) -> None:
        check_fraction(self.name, self.fraction)

    @property
    def keeps_residual(self) -> bool:
        return not self.unbiased

    def pack(self, values: np.ndarray, rng: np.random.Generator) -> bytes:
        seed = draw_seed(rng)
        chosen = values[self._places(seed, len(values))]
        if self.unbiased:
            chosen = chosen / np.float32(self.fraction)
        return seed + bytes(chosen.astype("<f4", copy=False))

    def unpack(self, frame: bytes, size: int) -> np.ndarray:
        if len(frame) < SEED_BYTES:
            self.refuse(f"{len(frame)} bytes", f"at least {SEED_BYTES} for the seed")
        places = self._places(frame[:SEED_BYTES], size)
        self.check_length(frame, SEED_BYTES + 4 * len(places), size)
        vector = np.zeros(size, np.float32)
        vector[places] = np.frombuffer(frame, "<f4", offset=SEED_BYTES)
        return vector

    def max_bytes(self, size: int) -> int:
        return SEED_BYTES + 4 * size

    def _places(self, seed: bytes, size: int) -> np.ndarray:
        """Each place with probability `fraction`, independently."""
        return np.flatnonzero(words(seed, size) <= np.uint32(self.fraction * (2**32 - 1)))
