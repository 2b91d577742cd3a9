"""What every sampler must do."""

from typing import Any

import numpy as np

from fedavg.samplers import Pool, Sampler
from fedavg.samplers.memory import CohortSeen, Memory, learned
from fedavg.testing.problem import check_repeats, check_text, require, small_plan


def check_sampler(sampler: Sampler, **options: Any) -> None:
    """It draws clients of the pool, each at most once, and the same ones from the same pool.

    >>> from fedavg.samplers import InTurns
    >>> check_sampler(InTurns())
    """
    what = f"sampler {sampler!r}"
    require(isinstance(sampler, Sampler), f"{what} is not a fedavg.Sampler; derive its class from it")
    check_text(sampler, Sampler, what)
    for round, size in [(1, 1), (2, 3), (3, 7), (4, 7)]:
        cohort, again = (list(map(int, sampler.draw(_pool(round, size)))) for _ in range(2))
        pool = set(_pool(round, size).clients.tolist())
        strangers = [k for k in cohort if k not in pool]
        require(not strangers, f"{what} drew {strangers}; expected numbers of pool.clients: {sorted(pool)}")
        require(len(set(cohort)) == len(cohort), f"{what} drew {cohort}; expected each client once (replace=False)")
        require(cohort == again, f"{what} drew {cohort}, then {again} from the same pool; draw only from pool.rng")
    looks_back = {"world": "always"} if sampler.remembers else {}
    plan = small_plan(sampling=sampler, **{**looks_back, **options})
    check_repeats(plan, what)


def _pool(round: int, size: int) -> Pool:
    clients = np.array([0, 2, 3, 5, 8, 9, 11])
    rng = np.random.default_rng(round)
    losses = np.array([1 / (1 + k) for k in range(12)])
    seen = CohortSeen(1, np.ones(12, bool), np.arange(6), np.ones(6, bool), losses[:6], 1.0 + np.arange(6))
    memory = learned(Memory.of_nothing(12), seen)
    return Pool(round, 0, size, clients, 3 + clients, rng, lambda asked: losses[list(asked)], memory)
