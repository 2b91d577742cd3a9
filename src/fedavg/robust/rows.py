"""The single updates of a cohort, and computations on them without a second copy.

Rules over single updates need one of two things. Distances, norms and means all follow from the inner products, which
are n x n numbers. Medians and the like need the values of one coordinate at a time. So the updates are read in tiles
that fit into a core's cache, and transformed updates (clipped, mixed with neighbours, bucketed) are kept as a matrix of
coefficients instead of new vectors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import numpy as np
import torch

#: Numbers in a tile: 1 MB of float32.
TILE: Final = 1 << 18
#: Coordinates in a tile: enough to make a call worthwhile, few enough to keep small cohorts in the cache.
NARROWEST, WIDEST = 256, 1 << 14


@final
class Basis:
    """Vectors of shape (P,), float32, as received. They are neither copied nor changed."""

    def __init__(self, vectors: Sequence[np.ndarray], gram: np.ndarray | None = None) -> None:
        self.vectors = list(vectors)
        if gram is not None:
            self.__dict__["gram"] = gram

    @property
    def size(self) -> int:
        """P."""
        return len(self.vectors[0]) if self.vectors else 0

    @cached_property
    def gram(self) -> np.ndarray:
        """All inner products, in float64: it holds products of float32 exactly, so that small distances survive."""
        total = np.zeros((len(self.vectors), len(self.vectors)))
        for _, tile in self.tiles(range(len(self.vectors))):
            exact = tile.astype(np.float64)
            total += product(exact, exact.T)
        return total

    def tiles(self, chosen: Sequence[int]) -> Iterator[tuple[slice, np.ndarray]]:
        """The chosen vectors, shape (len(chosen), T), for one run of coordinates after another."""
        width = min(max(TILE // max(len(chosen), 1), NARROWEST), WIDEST)
        for start in range(0, self.size, width):
            place = slice(start, min(start + width, self.size))
            yield place, np.stack([self.vectors[row][place] for row in chosen])

    def extended(self, vector: np.ndarray) -> "Basis":
        """The same with one more vector; known inner products are kept."""
        wide = Basis([*self.vectors, vector])
        if "gram" in self.__dict__:
            own = wide.products(vector)
            wide.__dict__["gram"] = np.block([[self.gram, own[:-1, None]], [own[None, :]]])
        return wide

    def products(self, vector: np.ndarray) -> np.ndarray:
        """The inner products of every vector with this one."""
        total = np.zeros(len(self.vectors))
        for place, tile in self.tiles(range(len(self.vectors))):
            total += product(tile.astype(np.float64), vector[place].astype(np.float64))
        return total


@final
@dataclass(frozen=True)
class Rows:
    """n updates of P numbers, in the order of their clients: row i is Σ_j mix[i, j] vector_j.

    >>> rows = Rows.of([np.array([3.0, 4.0], np.float32), np.array([1.0, 0.0], np.float32)])
    >>> rows.gram.tolist()
    [[25.0, 3.0], [3.0, 1.0]]
    >>> rows.mixed(np.array([[0.5, 0.5]])).combined(np.array([1.0])).tolist()
    [2.0, 2.0]
    """

    basis: Basis
    #: Shape (n, len(basis)), float64; None: the rows are the vectors themselves.
    mix: np.ndarray | None = None

    @classmethod
    def of(cls, vectors: Sequence[np.ndarray]) -> "Rows":
        return cls(Basis(vectors))

    def __len__(self) -> int:
        return len(self.basis.vectors) if self.mix is None else len(self.mix)

    @property
    def size(self) -> int:
        """P."""
        return self.basis.size

    @property
    def gram(self) -> np.ndarray:
        """The inner products of the rows, shape (n, n), float64."""
        if self.mix is None:
            return self.basis.gram
        gram: np.ndarray = self.mix @ self.basis.gram @ self.mix.T
        return gram

    def mixed(self, mix: np.ndarray) -> "Rows":
        """New rows that are combinations of these: mix has shape (new rows, n)."""
        return Rows(self.basis, mix if self.mix is None else mix @ self.mix)

    def extended(self, vector: np.ndarray) -> "Rows":
        """These rows, and a vector as the last one."""
        mix = None
        if self.mix is not None:
            mix = np.zeros((len(self.mix) + 1, self.mix.shape[1] + 1))
            mix[:-1, :-1], mix[-1, -1] = self.mix, 1.0
        return Rows(self.basis.extended(vector), mix)

    def coefficients(self, weights: np.ndarray) -> np.ndarray:
        """The coefficients of the basis vectors in Σ_i weights[i] row_i."""
        return weights if self.mix is None else weights @ self.mix

    def combined(self, weights: np.ndarray) -> np.ndarray:
        """Σ_i weights[i] row_i, shape (P,), float64. Vectors with weight zero are not read."""
        coefficients = self.coefficients(weights)
        chosen = [int(row) for row in np.flatnonzero(coefficients)]
        total = np.zeros(self.size)
        if chosen:
            for place, tile in self.basis.tiles(chosen):
                total[place] = product(coefficients[chosen], tile.astype(np.float64))
        return total

    def tiles(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The values of all rows, shape (n, T), float32, for one run of coordinates after another."""
        every = range(len(self.basis.vectors))
        mix = None if self.mix is None else self.mix.astype(np.float32)
        for place, tile in self.basis.tiles(every):
            yield place, tile if mix is None else product(mix, tile)

    def columns(self, places: np.ndarray) -> np.ndarray:
        """The values of all rows at some coordinates, shape (n, len(places)), float64."""
        values = np.stack([vector[places] for vector in self.basis.vectors]).astype(np.float64)
        return values if self.mix is None else product(self.mix, values)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b on PyTorch's threads; a run has one. NumPy would use all cores, and its rounding depends on their number.

    >>> product(np.eye(2), np.array([3.0, 4.0])).tolist()
    [3.0, 4.0]
    """
    made: np.ndarray = torch.from_numpy(a).matmul(torch.from_numpy(b)).numpy()
    return made


def length(vector: np.ndarray) -> float:
    """|vector|, on PyTorch's threads too.

    >>> length(np.array([3.0, 4.0]))
    5.0
    """
    return float(torch.linalg.vector_norm(torch.from_numpy(vector)))


def norms(gram: np.ndarray) -> np.ndarray:
    """The lengths of rows, shape (n,), from their inner products."""
    lengths: np.ndarray = np.sqrt(np.diagonal(gram).clip(min=0))
    return lengths


def squared_distances(gram: np.ndarray) -> np.ndarray:
    """|row_i - row_j|² for all pairs, shape (n, n); never negative by rounding."""
    lengths = np.diagonal(gram)
    distances: np.ndarray = np.maximum(lengths[:, None] + lengths[None, :] - gram - gram.T, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances
