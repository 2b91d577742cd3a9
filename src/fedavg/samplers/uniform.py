"""Samplers that do not depend on any data: uniform, Poisson, in turns. Privacy accounting knows what each is worth."""

from dataclasses import dataclass

import numpy as np

from fedavg.dp import accounting
from fedavg.samplers.sampler import Pool, Sampler


@dataclass(frozen=True)
class Uniform(Sampler):
    """m clients without replacement, each equally likely: Algorithm 1 of the paper.

    >>> str(Uniform())
    'fixed'
    """

    def draw(self, pool: Pool) -> np.ndarray:
        return pool.rng.choice(pool.clients, pool.size, replace=False)

    def privacy(self, clients: int, cohort: int) -> accounting.Sampling:
        return accounting.FixedSize(clients, cohort)


@dataclass(frozen=True)
class Poisson(Sampler):
    """Each client takes part with the same probability, independently; m on average.

    >>> str(Poisson())
    'poisson'
    """

    needs_everyone = True

    def draw(self, pool: Pool) -> np.ndarray:
        heads: np.ndarray = pool.clients[pool.rng.random(len(pool.clients)) < pool.size / len(pool.clients)]
        return heads

    def privacy(self, clients: int, cohort: int) -> accounting.Sampling:
        return accounting.PoissonSampling(cohort / clients)


@dataclass(frozen=True)
class InTurns(Sampler):
    """In the order of their numbers, m at a time, and from the start again: everyone takes part equally often.

    >>> str(InTurns())
    'turns'
    """

    def draw(self, pool: Pool) -> np.ndarray:
        first = (pool.round - 1 + pool.attempt) * pool.size
        turn: np.ndarray = pool.clients[(first + np.arange(pool.size)) % len(pool.clients)]
        return turn

    def privacy(self, clients: int, cohort: int) -> accounting.Sampling:
        """Everyone knows who takes part when, so a round is charged in full."""
        return accounting.EveryRound()
