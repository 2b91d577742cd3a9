"""S_t: which clients take part in a round."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedavg import seeds
from fedavg.errors import PlanError
from fedavg.plan import Plan
from fedavg.samplers import make_sampler
from fedavg.samplers.memory import Memory
from fedavg.samplers.sampler import Losses, Pool
from fedavg.types import Population


def _unknown(clients: Sequence[int]) -> np.ndarray:
    raise PlanError("sampling: losses of clients are not known here; expected a sampler that does not ask for them")


@dataclass(frozen=True)
class Among:
    """Who can be asked now, where not everybody can: `clients` has n_k = 0 for the others. `size` are wanted, in the
    given attempt at the round; `memory` is what has been learned of all clients."""

    clients: Population
    size: int
    attempt: int = 0
    memory: Memory | None = None


def sample_cohort(
    plan: Plan,
    clients: Population,
    round: int,
    attempt: int = 0,
    losses: Losses = _unknown,
    size: int | None = None,
    memory: Memory | None = None,
) -> list[int]:
    """The clients that the plan's sampler draws from those that have data; `size` of them, or C K.

    Another attempt at a round draws others.
    """
    seeded = plan.noise_source == "seeded"  # else who takes part must be as unknown as the noise
    purpose = f"cohort {attempt}" if attempt else "cohort"
    rng = seeds.rng(plan.seed, round, seeds.NONE, purpose) if seeded else seeds.fresh_rng()
    able, sampler = eligible(clients), make_sampler(plan.sampling)
    sizes = np.ones(clients.count, np.int64) if clients.sizes is None else clients.sizes
    wanted = cohort_size(plan.C, clients) if size is None else min(size, len(able))
    pool = Pool(round, attempt, wanted, able, sizes[able], rng, losses, memory)
    cohort = [int(k) for k in sampler.draw(pool)]
    if len(set(cohort)) < len(cohort) or not all(0 <= k < len(sizes) and sizes[k] for k in cohort):
        raise PlanError(
            f"sampling: {sampler} drew {cohort[:10]} in round {round}; expected clients of the pool, each once"
        )
    return cohort


def cohort_size(C: float, clients: Population) -> int:
    """m = max(C K, 1), at most as many as have data."""
    return min(max(round(C * clients.count), 1), clients.with_data)


def eligible(clients: Population) -> np.ndarray:
    """The clients that have data, as far as is known: one without any is never asked."""
    return np.arange(clients.count) if clients.sizes is None else np.flatnonzero(clients.sizes)
