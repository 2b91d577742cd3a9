"""S_t: which clients take part in a round."""

from fedavg import seeds
from fedavg.setup import Setup


def sample_cohort(setup: Setup, round: int, attempt: int = 0) -> list[int]:
    """m clients that have data, drawn without replacement (Algorithm 1); with Poisson sampling, m on average.

    Another attempt at a round draws others.
    """
    seeded = setup.plan.noise_source == "seeded"  # else who takes part must be as unknown as the noise
    purpose = f"cohort {attempt}" if attempt else "cohort"
    rng = seeds.rng(setup.plan.seed, round, seeds.NONE, purpose) if seeded else seeds.fresh_rng()
    if setup.plan.sampling == "poisson":
        chosen = rng.random(len(setup.eligible)) < setup.cohort_size / len(setup.eligible)
        return [int(k) for k in setup.eligible[chosen]]
    return [int(k) for k in rng.choice(setup.eligible, setup.cohort_size, replace=False)]
