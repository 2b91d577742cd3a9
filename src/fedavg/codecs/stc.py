"""Sparse ternary compression (Sattler et al. 2020, Algorithms 1 and 3): the k largest numbers, each as ±μ.

μ is the mean magnitude of the k, the places are Golomb-coded, and what is left out is kept in the sender's residual.
Used for both `codec` and `downlink`, it is the paper's Algorithm 2.
"""

from dataclasses import dataclass

import numpy as np

from fedavg.codecs.bits import packed_bytes
from fedavg.codecs.codec import Codec
from fedavg.codecs.golomb import decode_places, encode_places, max_place_bytes
from fedavg.codecs.topk import check_fraction, kept, largest_places


@dataclass(frozen=True)
class STC(Codec):
    """The `fraction` (the paper's p) of the numbers with the largest magnitudes, each as ±μ; the rest is kept.

    A frame has μ as float32, a sign bit for each of the k numbers, then their places.

    >>> str(STC(0.02))
    'stc:0.02'
    """

    name = "stc"
    keeps_residual = True
    fraction: float = 0.01

    def __post_init__(self) -> None:
        check_fraction(self.name, self.fraction)

    def pack(self, values: np.ndarray, rng: np.random.Generator) -> bytes:
        places = largest_places(values, kept(self.fraction, len(values)))
        if not len(places):
            return b""
        chosen = values[places]
        mu = np.array(np.abs(chosen).mean(dtype=np.float64), "<f4")
        signs = np.packbits(np.signbit(chosen), bitorder="little")
        return mu.tobytes() + signs.tobytes() + encode_places(places, len(values))

    def unpack(self, frame: bytes, size: int) -> np.ndarray:
        vector = np.zeros(size, np.float32)
        count = kept(self.fraction, size)
        if not count:
            self.check_length(frame, 0, size)
            return vector
        header = 4 + packed_bytes(1, count)
        if len(frame) < header:
            self.refuse(f"{len(frame)} bytes", f"at least {header} for {count} signs")
        mu = np.frombuffer(frame, "<f4", 1)[0]
        if not mu >= 0:
            self.refuse(f"a mean magnitude of {mu}", "at least 0")
        signs = np.unpackbits(np.frombuffer(frame[4:header], np.uint8), count=count, bitorder="little")
        vector[decode_places(frame[header:], count, size)] = np.where(signs, -mu, mu)
        return vector

    def max_bytes(self, size: int) -> int:
        count = kept(self.fraction, size)
        return 4 + packed_bytes(1, count) + max_place_bytes(count, size) if count else 0
