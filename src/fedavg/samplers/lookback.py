"""Samplers that use what the server has learned about its clients in earlier rounds (`Pool.memory`)."""

from dataclasses import dataclass

import numpy as np

from fedavg.errors import PlanError
from fedavg.samplers.memory import Memory
from fedavg.samplers.sampler import Pool, Sampler


@dataclass(frozen=True)
class Corrected(Sampler):
    """m clients without replacement, with higher odds for those that are rarely there: 1 over the share of rounds in
    which they could be asked, at most `most` times the odds of a client that is always there. So all clients
    that are there at times take part about equally often. Clients that are never there cannot be asked; reports count
    them.

    >>> str(Corrected(5))
    'corrected:5'
    """

    remembers = True
    most: float = 20.0

    def __post_init__(self) -> None:
        if not 1 <= self.most < np.inf:
            raise PlanError(f"sampling corrected: most is {self.most:g}; expected a number from 1")

    def draw(self, pool: Pool) -> np.ndarray:
        odds = np.minimum(1 / pool.known.presence[pool.clients], self.most)
        return pool.rng.choice(pool.clients, pool.size, replace=False, p=odds / odds.sum())


@dataclass(frozen=True)
class Oort(Sampler):
    """Clients that can still learn much and are fast: Lai et al. 2021, "Oort: Efficient Federated Learning via Guided
    Participant Selection", Algorithm 1.

    A client that has reported is worth n_k times its last training loss, cut at the 95th percentile, plus a bonus that
    grows with the rounds since; if it takes longer than a share `pace` of the clients do, times (T / t)^penalty. Of
    those whose worth is at least 0.95 times that of the last one needed, a cohort is drawn by worth. A share `explore`
    of the cohort, times 0.98 for each round so far and at least 0.2, is drawn of clients that have never reported. It
    differs from the paper: the loss is a mean (not the root of a mean of squares), T is a quantile (no pacer), and
    clients never tried are drawn uniformly, since their speed is not known yet.

    >>> str(Oort())
    'oort'
    """

    remembers = True
    needs_losses = True
    explore: float = 0.9
    penalty: float = 2.0
    pace: float = 0.8

    def __post_init__(self) -> None:
        checks = {"explore": (0, 1), "penalty": (0, 100), "pace": (0, 1)}
        for name, (low, high) in checks.items():
            if not low <= getattr(self, name) <= high:
                raise PlanError(f"sampling oort: {name} is {getattr(self, name):g}; expected from {low} to {high}")

    def draw(self, pool: Pool) -> np.ndarray:
        known = pool.known.last[pool.clients] > 0
        new, old = pool.clients[~known], pool.clients[known]
        explored = min(round(self._share(pool.known) * pool.size), len(new))
        exploited = min(pool.size - explored, len(old))
        explored = min(pool.size - exploited, len(new))
        worth = self.worth(pool.known, pool.round, old, pool.sizes[known])
        return np.concatenate(
            [_by_worth(old, worth, exploited, pool.rng), pool.rng.choice(new, explored, replace=False)]
        )

    def worth(self, memory: Memory, round: int, clients: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The worth of each of these clients, shape (N,)."""
        if not len(clients):
            return np.zeros(0)
        useful = sizes * np.nan_to_num(memory.loss[clients].astype(np.float64), nan=0.0)
        highest = float(np.percentile(useful, 95))
        worth = np.minimum(useful, highest) / (highest or 1.0)
        worth = worth + np.sqrt(0.1 * np.log(max(round, 2)) / memory.last[clients])
        seconds = memory.seconds[clients].astype(np.float64)
        timed = seconds[np.isfinite(seconds)]
        if not len(timed):
            return np.asarray(worth)
        limit = float(np.quantile(timed, self.pace))
        slow = np.isfinite(seconds) & (seconds > limit)
        slowed: np.ndarray = np.where(slow, worth * (limit / np.where(slow, seconds, 1.0)) ** self.penalty, worth)
        return slowed

    def _share(self, memory: Memory) -> float:
        return max(self.explore * 0.98**memory.rounds, min(self.explore, 0.2))


def _by_worth(clients: np.ndarray, worth: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """This many clients, drawn by worth from those worth nearly as much as the last one needed."""
    if not count:
        return clients[:0]
    cutoff = 0.95 * np.partition(worth, len(worth) - count)[len(worth) - count]
    good = worth >= cutoff
    odds = np.maximum(worth[good], 1e-9)
    return rng.choice(clients[good], count, replace=False, p=odds / odds.sum())
