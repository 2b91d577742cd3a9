"""S_t: which clients take part in a round."""

from fedavg import seeds
from fedavg.setup import Setup


def sample_cohort(setup: Setup, round: int, attempt: int = 0) -> list[int]:
    """m clients that have data, drawn without replacement (Algorithm 1); another attempt at a round draws others."""
    rng = seeds.rng(setup.plan.seed, round, seeds.NONE, f"cohort {attempt}" if attempt else "cohort")
    return [int(k) for k in rng.choice(setup.eligible, setup.cohort_size, replace=False)]
