"""`Codec`: a vector to bytes and back. The bytes are real: they are what the accounting counts.

Frames are not trusted. A decoder checks a whole frame before use, allocates no more than the vector and the frame
need, and refuses with a `DataError` any frame that no encoder makes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Final, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedavg.errors import DataError, Diverged, NotFinite
from fedavg.specs import Pluggable

#: Returns the shapes of a vector's layers, which are concatenated; lazy, because it may have to wait for the model.
Shapes = Callable[[], Sequence[tuple[int, ...]]]

#: Training that reaches such numbers has failed; below this limit no codec's arithmetic can overflow.
LIMIT: Final = 2.0**96


class Codec(Pluggable, ABC):
    """Encodes and decodes float32 vectors of a length that both ends know. Subclasses define `pack` and `unpack`.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Signs(Codec):
    ...     name = "signs"
    ...     step: float = 0.01
    ...
    ...     def pack(self, values, rng):
    ...         return np.packbits(values > 0).tobytes()
    ...
    ...     def unpack(self, frame, size):
    ...         self.check_length(frame, self.max_bytes(size), size)
    ...         signs = np.unpackbits(np.frombuffer(frame, np.uint8), count=size)
    ...         return np.where(signs, self.step, -self.step).astype(np.float32)
    ...
    ...     def max_bytes(self, size):
    ...         return (size + 7) // 8
    >>> frame = Signs(0.5).encode(torch.tensor([0.3, -2.0, 1.0]), np.random.default_rng(0))
    >>> len(frame), Signs(0.5).decode(frame, 3).tolist()
    (1, [0.5, -0.5, 0.5])
    """

    kind = "codec"
    name: str
    #: True if adding the frames themselves gives the sum of the decoded ones (secure aggregation needs that).
    additive: bool = False
    #: True if decoding gives back what was encoded, bit for bit, and `frame_bytes` says how long frames are: then a
    #: simulation need not make frames.
    lossless: bool = False
    #: Bytes per number, if a frame consists only of numbers: entropy coding codes each byte position separately.
    width: int = 1

    @classmethod
    def registry(cls) -> Mapping[str, type["Codec"]]:
        from fedavg.codecs import CODECS

        return CODECS

    @property
    def keeps_residual(self) -> bool:
        """True if the sender keeps what a frame leaves out and adds it to its next vector (error feedback)."""
        return False

    def bind(self, shapes: Shapes) -> "Codec":
        """The codec for vectors of these layers; the same for codecs that do not look at layers."""
        return self

    def encode(self, vector: Tensor, rng: np.random.Generator) -> bytes:
        """The frame for a vector, shape (P,) float32; a random codec draws only from `rng`.

        Values that are not finite, or absurdly large, raise `Diverged`: no codec may hide that training has failed.
        """
        values = vector.numpy()
        if not largest(values) <= LIMIT:  # written so that NaN is caught as well
            raise Diverged("an update holds values that are not finite (NaN or infinity) or are beyond 2^96")
        return self.pack(values, rng)

    def decode(self, frame: bytes | memoryview, size: int) -> Tensor:
        """The vector of `size` numbers in a frame; DataError if the frame is not of this codec."""
        if len(frame) > self.max_bytes(size):
            self.refuse(f"{len(frame)} bytes", f"at most {self.max_bytes(size)} for {size} numbers")
        with np.errstate(over="ignore", invalid="ignore"):  # untrusted numbers: the result is checked
            values = self.unpack(bytes(frame), size)
        if not isfinite(largest(values)):
            raise NotFinite(f"a {self.name} frame holds values that are not finite; expected finite numbers")
        return torch.from_numpy(values if values.flags.writeable else values.copy())

    @abstractmethod
    def pack(self, values: np.ndarray, rng: np.random.Generator) -> bytes:
        """The frame for finite float32 values, shape (P,), which must not be changed."""

    @abstractmethod
    def unpack(self, frame: bytes, size: int) -> np.ndarray:
        """A new float32 array, shape (size,), from a frame of at most `max_bytes(size)`."""

    @abstractmethod
    def max_bytes(self, size: int) -> int:
        """No frame for `size` numbers is longer than this."""

    def frame_bytes(self, size: int) -> int | None:
        """How long every frame for `size` numbers is; None if that depends on the numbers.

        A simulated world has to know this before clients train, so it needs a codec that says it.
        """
        return None

    def refuse(self, got: str, expected: str) -> NoReturn:
        raise DataError(f"a {self.name} frame has {got}; expected {expected}")

    def check_length(self, frame: bytes, expected: int, size: int) -> None:
        if len(frame) != expected:
            self.refuse(f"{len(frame)} bytes", f"{expected} for {size} numbers")


def largest(values: np.ndarray) -> float:
    """max |v|, 0 for no values; NaN or infinity if any value is."""
    return max(abs(float(values.min())), abs(float(values.max()))) if len(values) else 0.0
