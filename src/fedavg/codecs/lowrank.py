"""Low-rank structured updates (Konečný et al. 2016, §2): each layer's change as a product A B of rank k.

A is random, drawn from a seed; only the seed and B are sent. The paper learns B during local training; here B is fitted
to the finished change, so that any algorithm can use it: with orthonormal columns in A, B = Aᵀ H. If unbiased, A B is
multiplied by n/k, and its expectation is H. Otherwise A B is the nearest to H, and the rest is kept in the sender's
residual.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedavg.codecs.bits import SEED_BYTES, draw_seed, words
from fedavg.codecs.codec import Codec, Shapes
from fedavg.errors import PlanError
from fedavg.specs import bound


@dataclass(frozen=True)
class LowRank(Codec):
    """Each layer's change as a product of rank `rank`, of which one factor is random; small layers are sent whole.

    A frame has the seed, then for each layer k numbers for each index of its shorter side. A codec that is not bound to
    layers treats the vector as one one-dimensional layer, and sends it whole.

    >>> str(LowRank(2))
    'lowrank:2'
    """

    name = "lowrank"
    rank: int = 4
    unbiased: bool = True
    shapes: tuple[tuple[int, ...], ...] = bound(())

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise PlanError(f"lowrank: the rank is {self.rank}; expected at least 1, as in 'lowrank:4'")

    @property
    def keeps_residual(self) -> bool:
        return not self.unbiased

    def bind(self, shapes: Shapes) -> "LowRank":
        return replace(self, shapes=tuple(tuple(shape) for shape in shapes()))

    def pack(self, values: np.ndarray, rng: np.random.Generator) -> bytes:
        seed = draw_seed(rng)
        parts = (self._sent(seed, layer, values) for layer in self._layers(len(values)))
        return seed + b"".join(part.astype("<f4", copy=False).tobytes() for part in parts)

    def unpack(self, frame: bytes, size: int) -> np.ndarray:
        self.check_length(frame, self.max_bytes(size), size)
        numbers = np.frombuffer(frame, "<f4", offset=SEED_BYTES)
        vector = np.empty(size, np.float32)
        start = 0
        for layer in self._layers(size):
            part = numbers[start : start + layer.sent]
            start += layer.sent
            vector[layer.slice] = self._received(frame[:SEED_BYTES], layer, part)
        return vector

    def max_bytes(self, size: int) -> int:
        return SEED_BYTES + 4 * sum(layer.sent for layer in self._layers(size))

    def frame_bytes(self, size: int) -> int:
        return self.max_bytes(size)

    def _layers(self, size: int) -> Iterator["_Layer"]:
        """The layers of a vector: those that the codec is bound to, if they fit."""
        shapes = self.shapes if sum(map(prod, self.shapes)) == size else ((size,),)
        offset = 0
        for shape in shapes:
            yield _Layer(shape, offset, self.rank)
            offset += prod(shape)

    def _sent(self, seed: bytes, layer: "_Layer", values: np.ndarray) -> np.ndarray:
        """B of a layer, or the layer itself."""
        if not layer.narrow:
            return values[layer.slice]
        matrix, left = torch.from_numpy(values[layer.slice]).view(layer.sides), self._left(seed, layer)
        fitted = left.t() @ matrix if layer.tall else matrix @ left
        return (fitted * (layer.rows / self.rank) if self.unbiased else fitted).view(-1).numpy()

    def _received(self, seed: bytes, layer: "_Layer", part: np.ndarray) -> np.ndarray:
        """A B of a layer, or the layer itself."""
        if not layer.narrow:
            return part
        fitted, left = torch.from_numpy(part.astype(np.float32)), self._left(seed, layer)
        product = left @ fitted.view(self.rank, -1) if layer.tall else fitted.view(-1, self.rank) @ left.t()
        return product.view(-1).numpy()

    def _left(self, seed: bytes, layer: "_Layer") -> Tensor:
        """A, shape (n, k), with orthonormal columns; each layer has its own.

        Rows are identically distributed and symmetric in sign, hence E[A Aᵀ] = (k/n) I.
        """
        own = (int.from_bytes(seed, "little") ^ (layer.offset << 64)).to_bytes(16, "little")
        random = words(own, layer.rows * self.rank).astype(np.float64).reshape(layer.rows, self.rank)
        left: Tensor = torch.linalg.qr(torch.from_numpy((random + 0.5) * 2.0**-31 - 1)).Q.float()
        return left


@dataclass(frozen=True)
class _Layer:
    """A layer's position in the vector, and its shape as a matrix; A belongs to its longer side."""

    shape: tuple[int, ...]
    offset: int
    rank: int

    @property
    def rows(self) -> int:
        """n, the longer side."""
        return max(self.sides)

    @property
    def tall(self) -> bool:
        return self.sides[0] >= self.sides[1]

    @property
    def narrow(self) -> bool:
        """True if rank k makes it smaller."""
        return len(self.shape) > 1 and self.rank < self.rows

    @property
    def sent(self) -> int:
        return self.rank * min(self.sides) if self.narrow else prod(self.shape)

    @property
    def slice(self) -> slice:
        return slice(self.offset, self.offset + prod(self.shape))

    @property
    def sides(self) -> tuple[int, int]:
        return self.shape[0], prod(self.shape[1:])
