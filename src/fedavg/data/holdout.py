"""Federated data without a share of each client's own examples, which are kept to judge models on, client by client."""

from functools import cached_property
from typing import final

import numpy as np
import torch

from fedavg import seeds, trees
from fedavg.types import Examples, FederatedData


def held_out(sizes: np.ndarray, share: float) -> np.ndarray:
    """How many of each client's examples are held out: the share, rounded, but never all."""
    held: np.ndarray = np.minimum(np.floor(share * sizes + 0.5).astype(np.int64), np.maximum(sizes - 1, 0))
    return held


@final
class HeldOut(FederatedData):
    """The same clients with what is left to train on; `held(k)` is what was taken out. The seed decides which examples.
    A client keeps at least one, so a client with a single example holds none out.

    >>> from fedavg import ArrayData
    >>> data = ArrayData("mine", [[1.0], [2.0], [3.0], [4.0], [5.0]], [0, 1, 0, 1, 0], [[0, 1, 2, 3], [4]], None)
    >>> held = HeldOut(data, 0.25, seed=0)
    >>> held.sizes.tolist(), held.held_sizes.tolist(), len(held.held(0))
    ([3, 1], [1, 0], 1)
    """

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
        return hold_out(self._data.client(k), self._share, self._seed, k)[0]

    def held(self, k: int) -> Examples:
        return hold_out(self._data.client(k), self._share, self._seed, k)[1]

    @property
    def test(self) -> Examples | None:
        return self._data.test

    @property
    def fingerprint(self) -> str:
        return f"{self._data.fingerprint}-{self._share:g}-{self._seed}"


def hold_out(examples: Examples, share: float, seed: int, k: int) -> tuple[Examples, Examples]:
    """What client k trains on, and what is held out of it."""
    if not share:
        return examples, _rows(examples, np.empty(0, np.int64))
    order = seeds.rng(seed, seeds.NONE, k, "held out").permutation(len(examples))
    held = int(held_out(np.array(len(examples)), share))
    return _rows(examples, order[held:]), _rows(examples, order[:held])


def _rows(examples: Examples, rows: np.ndarray) -> Examples:
    return trees.take(examples, torch.from_numpy(np.sort(rows)))
