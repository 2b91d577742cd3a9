"""Federated data without a share of each client's own examples, which are kept to judge models on, client by client."""

from functools import cached_property
from typing import final

import numpy as np
import torch

from fedavg import seeds
from fedavg.types import Examples, FederatedData


def held_out(sizes: np.ndarray, share: float) -> np.ndarray:
    """How many of each client's examples are held out: the share, rounded, but never all."""
    held: np.ndarray = np.minimum(np.floor(share * sizes + 0.5).astype(np.int64), np.maximum(sizes - 1, 0))
    return held


@final
class HeldOut(FederatedData):
    """The same clients with what is left to train on; `held(k)` is what was taken out. Who loses what follows from the
    seed. A client keeps at least one example, so one that has only one gives none."""

    def __init__(self, data: FederatedData, share: float, seed: int) -> None:
        self.name = f"{data.name}, {share:g} held out"
        self._data, self._share, self._seed = data, share, seed

    @cached_property
    def sizes(self) -> np.ndarray:
        left: np.ndarray = self._data.sizes - self.held_sizes
        return left

    @cached_property
    def held_sizes(self) -> np.ndarray:
        """How many examples of each client are held out, shape (K,), int64."""
        return held_out(self._data.sizes, self._share)

    def client(self, k: int) -> Examples:
        return self._rows(k, slice(int(self.held_sizes[k]), None))

    def held(self, k: int) -> Examples:
        return self._rows(k, slice(0, int(self.held_sizes[k])))

    def _rows(self, k: int, part: slice) -> Examples:
        examples = self._data.client(k)
        order = seeds.rng(self._seed, seeds.NONE, k, "held out").permutation(len(examples))
        rows = torch.from_numpy(np.sort(order[part]))
        return Examples(examples.x.index_select(0, rows), examples.y.index_select(0, rows))

    @property
    def test(self) -> Examples | None:
        return self._data.test

    @property
    def fingerprint(self) -> str:
        return f"{self._data.fingerprint}-{self._share:g}-{self._seed}"
