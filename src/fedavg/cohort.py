"""S_t: which clients take part in a round."""

from fedavg import seeds
from fedavg.setup import Setup


def sample_cohort(setup: Setup, round: int) -> list[int]:
    """m clients that have data, drawn without replacement (Algorithm 1)."""
    rng = seeds.rng(setup.plan.seed, round, seeds.NONE, "cohort")
    return [int(k) for k in rng.choice(setup.eligible, setup.cohort_size, replace=False)]
