"""The factor of a lie that does the most harm, as ByzFL searches for it (González et al. 2025): by doubling steps as
long as they help, then by smaller and smaller ones.

Lies are combinations of a few vectors. If the defence's result is one too, as for most defences, a trial needs no pass
over the updates, only products of small matrices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np

from fedavg.attacks.attack import View
from fedavg.errors import PlanError
from fedavg.robust import Rows
from fedavg.robust.rows import length


@dataclass(frozen=True)
class DamageSearch:
    """How to search: this many trials, from `start` by steps of `delta`, which shrink by `ratio`."""

    evals: int = 20
    start: float = 0.0
    delta: float = 10.0
    ratio: float = 0.8

    def __post_init__(self) -> None:
        if self.evals < 1 or not isfinite(self.start) or not self.delta or not 0.5 < self.ratio < 1:
            raise PlanError(
                f"got evals={self.evals}, start={self.start:g}, delta={self.delta:g}, ratio={self.ratio:g}; "
                "expected 1 or more trials, a finite start, a delta that is not 0, a ratio between 0.5 and 1"
            )


def strongest(search: DamageSearch, view: View, wide: Rows, lie: Callable[[float], np.ndarray]) -> float:
    """The factor whose lie moves the result furthest. A lie is given by its weights of `wide`: honest updates first."""
    harm = _Harm(view, wide, lie)
    best, most = search.start, harm(search.start)
    delta, left, growing = search.delta, search.evals - 1, True
    while left:
        found = harm(best + delta)
        left -= 1
        if found > most:
            best, most = best + delta, found
            delta *= 2 if growing else search.ratio
        else:
            growing = False
            delta *= search.ratio
    return best


def mean_weights(rows: int) -> np.ndarray:
    return np.full(rows, 1 / rows)


class _Harm:
    """How far the server's result is from the mean of the honest updates, for a factor."""

    def __init__(self, view: View, wide: Rows, lie: Callable[[float], np.ndarray]) -> None:
        self._view, self._wide, self._lie = view, wide, lie
        honest = len(view.honest)
        self._honest = np.eye(honest, len(wide))
        self._mean = np.append(mean_weights(honest), np.zeros(len(wide) - honest))
        self._mean_vector: np.ndarray | None = None

    def __call__(self, factor: float) -> float:
        lies = np.tile(self._lie(factor), (self._view.liars, 1))
        rows = self._wide.mixed(np.concatenate([self._honest, lies]))
        defence, rng, previous = self._view.defence, self._view.rng, self._view.previous
        weights = defence.weights(rows, rng, previous)
        if weights is None:
            return length(defence.reduce(rows, rng, previous) - self._honest_mean())
        away = weights - self._mean
        return sqrt(max(float(away @ self._wide.gram @ away), 0.0))

    def _honest_mean(self) -> np.ndarray:
        if self._mean_vector is None:
            self._mean_vector = self._wide.combined(self._mean)
        return self._mean_vector
