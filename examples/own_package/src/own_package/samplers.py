"""Half of the cohort are the clients with the most examples, the others are drawn from the rest."""

from dataclasses import dataclass

import numpy as np

from fedavg.samplers import Pool, Sampler


@dataclass(frozen=True)
class LargestFirst(Sampler):
    """`share` of the cohort is fixed; it looks at n_k, so it declares no privacy."""

    share: float = 0.5

    def draw(self, pool: Pool) -> np.ndarray:
        order = pool.clients[np.argsort(-pool.sizes, kind="stable")]
        fixed = int(self.share * pool.size)
        others = pool.rng.choice(order[fixed:], pool.size - fixed, replace=False)
        return np.concatenate([order[:fixed], others])
