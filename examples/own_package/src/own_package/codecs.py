"""Signs and one scale: a bit for each number, and what is left out is sent later (error feedback)."""

from dataclasses import dataclass

import numpy as np

from fedavg.codecs import Codec


@dataclass(frozen=True)
class Signs(Codec):
    """The mean of |v|, then the sign of each number; zero if the vector is all zeros."""

    name = "signs"

    @property
    def keeps_residual(self) -> bool:
        return True

    def pack(self, values: np.ndarray, rng: np.random.Generator) -> bytes:
        scale = np.array(np.abs(values).mean() if len(values) else 0, "<f4")
        return scale.tobytes() + np.packbits(values > 0).tobytes()

    def unpack(self, frame: bytes, size: int) -> np.ndarray:
        self.check_length(frame, self.max_bytes(size), size)
        scale = np.frombuffer(frame[:4], "<f4")[0]
        if not 0 <= scale < np.inf:
            self.refuse(f"a scale of {scale}", "a finite number from 0")
        bits = np.unpackbits(np.frombuffer(frame[4:], np.uint8), count=size)
        vector: np.ndarray = np.where(bits > 0, scale, -scale).astype(np.float32)
        return vector

    def max_bytes(self, size: int) -> int:
        return 4 + (size + 7) // 8
