"""Samplers that use what clients have. They do not work with differential privacy: the choice itself reveals it."""

from dataclasses import dataclass

import numpy as np

from fedavg.errors import PlanError
from fedavg.samplers.sampler import Pool, Sampler


@dataclass(frozen=True)
class Weighted(Sampler):
    """m clients without replacement, drawn by n_k. With `weigh:equal` all then count equally in the sum.

    >>> str(Weighted())
    'weighted'
    """

    def draw(self, pool: Pool) -> np.ndarray:
        return pool.rng.choice(pool.clients, pool.size, replace=False, p=pool.sizes / pool.sizes.sum())


@dataclass(frozen=True)
class PowerOfChoice(Sampler):
    """Of d candidates drawn by n_k, the m whose loss is highest: Cho et al. 2020, "Client Selection in Federated
    Learning", pow-d. The candidates judge the current model on their training examples, so nothing is remembered.

    >>> str(PowerOfChoice(20))
    'choice:20'
    """

    needs_losses = True
    d: int

    def __post_init__(self) -> None:
        if self.d < 1:
            raise PlanError(f"sampling choice: d is {self.d}; expected at least 1, as in 'choice:20'")

    def draw(self, pool: Pool) -> np.ndarray:
        count = min(max(self.d, pool.size), int(np.count_nonzero(pool.sizes)))
        candidates = pool.rng.choice(pool.clients, count, replace=False, p=pool.sizes / pool.sizes.sum())
        worst_first = np.argsort(-pool.losses([int(k) for k in candidates]), kind="stable")
        highest: np.ndarray = candidates[worst_first[: pool.size]]
        return highest
