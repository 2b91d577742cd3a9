"""S_t: which clients take part in a round."""

import numpy as np

from fedavg import seeds
from fedavg.plan import Plan
from fedavg.setup import cohort_size
from fedavg.types import Population


def sample_cohort(plan: Plan, clients: Population, round: int, attempt: int = 0) -> list[int]:
    """m clients that have data, drawn without replacement (Algorithm 1); with Poisson sampling, m on average.

    Another attempt at a round draws others.
    """
    seeded = plan.noise_source == "seeded"  # else who takes part must be as unknown as the noise
    purpose = f"cohort {attempt}" if attempt else "cohort"
    rng = seeds.rng(plan.seed, round, seeds.NONE, purpose) if seeded else seeds.fresh_rng()
    able, size = eligible(clients), cohort_size(plan.C, clients)
    if plan.sampling == "poisson":
        return [int(k) for k in able[rng.random(len(able)) < size / len(able)]]
    return [int(k) for k in rng.choice(able, size, replace=False)]


def eligible(clients: Population) -> np.ndarray:
    """The clients that have data, as far as is known: one without any is never asked."""
    return np.arange(clients.count) if clients.sizes is None else np.flatnonzero(clients.sizes)
