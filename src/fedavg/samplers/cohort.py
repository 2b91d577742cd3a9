"""S_t: which clients take part in a round."""

from collections.abc import Sequence

import numpy as np

from fedavg import seeds
from fedavg.errors import PlanError
from fedavg.samplers.sampler import Losses, Pool
from fedavg.setup import Setup


def _unknown(clients: Sequence[int]) -> np.ndarray:
    raise PlanError("sampling: losses of clients are not known here; expected a sampler that does not ask for them")


def sample_cohort(setup: Setup, round: int, attempt: int = 0, losses: Losses = _unknown) -> list[int]:
    """The clients that the plan's sampler draws from those that have data. Another attempt at a round draws others."""
    seeded = setup.plan.noise_source == "seeded"  # else who takes part must be as unknown as the noise
    purpose = f"cohort {attempt}" if attempt else "cohort"
    rng = seeds.rng(setup.plan.seed, round, seeds.NONE, purpose) if seeded else seeds.fresh_rng()
    sizes, clients = setup.data.sizes, setup.eligible
    chosen = setup.sampler.draw(Pool(round, attempt, setup.cohort_size, clients, sizes[clients], rng, losses))
    cohort = [int(k) for k in chosen]
    if len(set(cohort)) < len(cohort) or not all(0 <= k < len(sizes) and sizes[k] for k in cohort):
        raise PlanError(
            f"sampling: {setup.sampler} drew {cohort[:10]} in round {round}; expected clients of the pool, each once"
        )
    return cohort
