"""Data that changes from round to round: examples arrive and are deleted, and what they mean may drift.

What a client has in a round follows from the seed and the round alone, so that a resumed run finds the same.
"""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf
from typing import final

import numpy as np
import torch

from fedavg import seeds, trees
from fedavg.errors import DataError, PlanError
from fedavg.specs import Pluggable, text_of
from fedavg.types import Examples, FederatedData


class Changes(Pluggable, ABC):
    """How data changes. Your own is a frozen dataclass of this class, with one of its two methods or both:

    >>> @dataclass(frozen=True)
    ... class Weekly(Changes):
    ...     def lifetimes(self, sizes, rng):
    ...         arrives = 1 + 7 * rng.integers(0, 4, sizes.sum())
    ...         return arrives, arrives + 14
    >>> first, until = Weekly().lifetimes(np.array([2, 3]), np.random.default_rng(0))
    >>> first.shape, bool((until - first == 14).all())
    ((5,), True)
    """

    kind = "changes"

    @classmethod
    def registry(cls) -> Mapping[str, type["Changes"]]:
        return CHANGES

    def lifetimes(self, sizes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The rounds in which each example is there: from `first` on, and no longer from `until` on; both of shape
        (Σ n_k,), the examples of client 0 first, then those of client 1, and so on."""
        return np.ones(int(sizes.sum())), np.full(int(sizes.sum()), inf)

    def altered(self, examples: Examples, client: int | None, round: int) -> Examples:
        """What a client's examples are in a round; those of the server's test set where `client` is None."""
        return examples


@dataclass(frozen=True)
class Arrivals(Changes):
    """A share `start` of all examples is there in round 1; the others arrive one by one over the next `rounds`.

    >>> str(Arrivals(0.1, rounds=100))
    'arrivals:0.1:100'
    """

    start: float = 0.2
    rounds: int = 50

    def __post_init__(self) -> None:
        _check("arrivals", "start", self.start, 0 < self.start <= 1, "a share above 0 and up to 1")
        _check("arrivals", "rounds", self.rounds, self.rounds >= 1, "1 or more")

    def lifetimes(self, sizes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        first = _arrivals(int(sizes.sum()), self.start, self.rounds, rng)
        return first, np.full(len(first), inf)


@dataclass(frozen=True)
class Deletions(Changes):
    """Before each round after the first, each example that is left is deleted with probability `rate`.

    >>> str(Deletions(0.05))
    'deletions:0.05'
    """

    rate: float = 0.01

    def __post_init__(self) -> None:
        _check("deletions", "rate", self.rate, 0 < self.rate < 1, "a number above 0 and below 1")

    def lifetimes(self, sizes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(int(sizes.sum())), 1.0 + rng.geometric(self.rate, int(sizes.sum()))


@dataclass(frozen=True)
class Window(Changes):
    """Examples arrive as in `arrivals`, and each is deleted `life` rounds after it came.

    >>> str(Window(0.5, rounds=20, life=10))
    'window:0.5:20:10'
    """

    start: float = 0.2
    rounds: int = 50
    life: int = 20

    def __post_init__(self) -> None:
        _check("window", "start", self.start, 0 < self.start <= 1, "a share above 0 and up to 1")
        _check("window", "rounds", self.rounds, self.rounds >= 1, "1 or more")
        _check("window", "life", self.life, self.life >= 1, "1 or more")

    def lifetimes(self, sizes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        first = _arrivals(int(sizes.sum()), self.start, self.rounds, rng)
        return first, first + self.life


@dataclass(frozen=True)
class Drift(Changes):
    """Concept drift: from a round on the label y stands for what (y + shift) mod `classes` stood for before, for all
    clients and in the test set.

    >>> str(Drift(20))
    'drift:20'
    """

    round: int = 50
    shift: int = 1
    classes: int = 10

    def __post_init__(self) -> None:
        _check("drift", "round", self.round, self.round >= 1, "1 or more")
        _check("drift", "classes", self.classes, self.classes >= 2, "2 or more")
        _check("drift", "shift", self.shift, self.shift % self.classes > 0, "no multiple of classes")

    def altered(self, examples: Examples, client: int | None, round: int) -> Examples:
        if round < self.round:
            return examples
        y = examples.y
        if (
            not isinstance(y, torch.Tensor)
            or y.is_floating_point()
            or (len(y) and not 0 <= int(y.max()) < self.classes)
        ):
            raise DataError(f"changes drift: expected labels that are whole numbers below {self.classes}; set classes")
        return replace(examples, y=(y + self.shift) % self.classes)


CHANGES: dict[str, type[Changes]] = {
    "arrivals": Arrivals,
    "deletions": Deletions,
    "window": Window,
    "drift": Drift,
}


def _arrivals(count: int, start: float, rounds: int, rng: np.random.Generator) -> np.ndarray:
    drawn = rng.random(count)
    arrives: np.ndarray = np.where(drawn < start, 1.0, 1.0 + np.ceil((drawn - start) / (1 - start + 1e-12) * rounds))
    return arrives


def _check(name: str, setting: str, value: float, good: bool, expected: str) -> None:
    if not good:
        raise PlanError(f"changes {name}: {setting} is {value:g}; expected {expected}")


@final
class ChangingData(FederatedData):
    """Data by what it is in each round; what clients hold out stays. By itself it is the data of round 1.

    >>> from fedavg import ArrayData
    >>> data = ArrayData("mine", [[1.0], [2.0], [3.0]], [0, 1, 0], [[0, 1], [2]], None)
    >>> changing = ChangingData(data, Deletions(0.5), seed=1)
    >>> [changing.at(round).sizes.tolist() for round in (1, 2, 3)]
    [[2, 1], [0, 1], [0, 0]]
    """

    def __init__(self, data: FederatedData, changes: Changes, seed: int) -> None:
        self.name = f"{data.name}, {changes}"
        self._data, self._changes, self._seed = data, changes, seed
        self._ends = np.cumsum(data.sizes)
        self._at = lru_cache(maxsize=2)(self._new_view)

    def at(self, round: int) -> FederatedData:
        return self._at(round)

    def _new_view(self, round: int) -> FederatedData:
        first, until = self._lifetimes
        return _InRound(self._data, self._changes, round, (first <= round) & (round < until), self._ends)

    @cached_property
    def _lifetimes(self) -> tuple[np.ndarray, np.ndarray]:
        rng = seeds.rng(self._seed, seeds.NONE, seeds.NONE, "changes")
        first, until = (np.asarray(each) for each in self._changes.lifetimes(self._data.sizes, rng))
        expected = (int(self._data.sizes.sum()),)
        if first.shape != expected or until.shape != expected:
            raise DataError(
                f"changes {self._changes}: lifetimes have shapes {first.shape} and {until.shape}; expected {expected}, "
                "one for each example"
            )
        return first, until

    @property
    def sizes(self) -> np.ndarray:
        return self.at(1).sizes

    def client(self, k: int) -> Examples:
        return self.at(1).client(k)

    @property
    def test(self) -> Examples | None:
        return self.at(1).test

    @property
    def held_sizes(self) -> np.ndarray:
        return self._data.held_sizes

    def held(self, k: int) -> Examples:
        return self.at(1).held(k)

    @property
    def fingerprint(self) -> str:
        return f"{self._data.fingerprint}-{text_of(self._changes) or type(self._changes).__qualname__}-{self._seed}"


@final
class _InRound(FederatedData):
    """What is there in one round. `there`, shape (Σ n_k,) bool, says which examples are."""

    def __init__(self, data: FederatedData, changes: Changes, round: int, there: np.ndarray, ends: np.ndarray) -> None:
        self.name = f"{data.name}, round {round}"
        self._data, self._changes, self._round = data, changes, round
        self._there, self._ends = there, ends
        counts = np.concatenate([[0], np.cumsum(there)])
        self._sizes: np.ndarray = counts[ends] - counts[ends - data.sizes]

    @property
    def sizes(self) -> np.ndarray:
        return self._sizes

    def client(self, k: int) -> Examples:
        examples, end = self._data.client(k), int(self._ends[k])
        there = self._there[end - len(examples) : end]
        if not there.all():
            examples = trees.take(examples, torch.from_numpy(np.flatnonzero(there)))
        return self._changes.altered(examples, k, self._round)

    @property
    def test(self) -> Examples | None:
        return self._changes.altered(self._data.test, None, self._round) if self._data.test else None

    @property
    def held_sizes(self) -> np.ndarray:
        return self._data.held_sizes

    def held(self, k: int) -> Examples:
        return self._changes.altered(self._data.held(k), k, self._round)

    @property
    def fingerprint(self) -> str:
        return f"{self._data.fingerprint}, round {self._round}"
