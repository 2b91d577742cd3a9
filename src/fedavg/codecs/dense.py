"""Every number of the vector, at 32 or 16 bits, little-endian."""

import numpy as np
import torch
from torch import Tensor

from fedavg.codecs.codec import Codec
from fedavg.errors import DataError


class Dense(Codec):
    """Numbers one after another in one numpy type; float32 is lossless."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name = name
        self.additive = name == "float32"
        self._dtype = np.dtype(dtype)

    def encode(self, vector: Tensor, rng: np.random.Generator) -> bytes:
        return vector.numpy().astype(self._dtype, copy=False).tobytes()

    def decode(self, frame: bytes | memoryview, size: int) -> Tensor:
        expected = self.max_bytes(size)
        if len(frame) != expected:
            raise DataError(f"a {self.name} frame has {len(frame)} bytes; expected {expected} for {size} numbers")
        return torch.from_numpy(np.frombuffer(frame, self._dtype).astype(np.float32))

    def max_bytes(self, size: int) -> int:
        return size * self._dtype.itemsize
