"""`Codec`: a vector to bytes and back. The bytes are real: they are what the accounting counts."""

from abc import ABC, abstractmethod

import numpy as np
from torch import Tensor


class Codec(ABC):
    """Both ends of a wire for float32 vectors of a length that both know."""

    name: str
    #: True if the sum of decoded frames can be had by adding the frames themselves (secure aggregation needs that).
    additive: bool

    @abstractmethod
    def encode(self, vector: Tensor, rng: np.random.Generator) -> bytes:
        """The frame for a vector, shape (P,) float32; a random codec draws from `rng` alone."""

    @abstractmethod
    def decode(self, frame: bytes | memoryview, size: int) -> Tensor:
        """The vector of `size` numbers in a frame; a frame of the wrong length is refused."""

    @abstractmethod
    def max_bytes(self, size: int) -> int:
        """No frame for `size` numbers is longer: what a server reads from a stranger at the most."""
