"""Every number of the vector, at 32 or 16 bits, little-endian."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedavg.codecs.codec import Codec
from fedavg.errors import DataError


class Dense(Codec):
    """Numbers one after another in one numpy type."""

    dtype: np.dtype

    def encode(self, vector: Tensor, rng: np.random.Generator) -> bytes:
        return vector.numpy().astype(self.dtype, copy=False).tobytes()

    def decode(self, frame: bytes | memoryview, size: int) -> Tensor:
        if len(frame) != self.max_bytes(size):
            raise DataError(
                f"a {self.name} frame has {len(frame)} bytes; expected {self.max_bytes(size)} for {size} numbers"
            )
        return torch.from_numpy(np.frombuffer(frame, self.dtype).astype(np.float32))

    def max_bytes(self, size: int) -> int:
        return size * self.dtype.itemsize


@dataclass(frozen=True)
class Float32(Dense):
    """Lossless."""

    name = "float32"
    additive = True
    dtype = np.dtype("<f4")


@dataclass(frozen=True)
class Float16(Dense):
    name = "float16"
    dtype = np.dtype("<f2")
