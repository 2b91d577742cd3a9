"""Divide-and-conquer: Shejwalkar and Houmansadr 2021, "Manipulating the Byzantine", Algorithm 2.

rounds times:  at b random coordinates: s_i = (projection of x_i - mean on the direction of largest variance)²
               good = the n - c f rows with the smallest s_i
the mean of the rows that were good every time
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from fedavg.errors import PlanError
from fedavg.robust.krum import mean_of
from fedavg.robust.reducer import Case, Combination, Tolerant
from fedavg.robust.rows import Rows, product


@dataclass(frozen=True)
class DnC(Tolerant, Combination):
    """The mean without the updates that stand out along the direction of largest variance.

    `drop` is the paper's c: c f updates are left out each time. With more than one of the `rounds` more may be.

    >>> str(DnC(0.3))
    'dnc:0.3'
    """

    name = "dnc"
    rounds: int = 1
    coordinates: int = 10_000
    drop: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1 or self.coordinates < 1 or not 0 < self.drop <= 2:
            raise PlanError(
                f"dnc: got rounds={self.rounds}, coordinates={self.coordinates}, drop={self.drop:g}; expected 1 or "
                "more of each, and to drop above 0 to 2 times f"
            )

    def weights(self, rows: Rows, case: Case) -> np.ndarray:
        n = len(rows)
        left_out = min(ceil(self.drop * case.faults), n - 1)
        good = np.ones(n, bool)
        for _round in range(self.rounds):
            scores = self._scores(rows, case.rng)
            this_time = np.zeros(n, bool)
            this_time[np.argsort(scores, kind="stable")[: n - left_out]] = True
            good = good & this_time if (good & this_time).any() else this_time
        return mean_of(n, np.flatnonzero(good))

    def _scores(self, rows: Rows, rng: np.random.Generator) -> np.ndarray:
        places = np.sort(rng.choice(rows.size, min(self.coordinates, rows.size), replace=False))
        values = rows.columns(places)
        values -= values.mean(axis=0)
        # The projections on the top right singular vector are the top left one times its singular value.
        _, vectors = np.linalg.eigh(product(values, values.T))
        scores: np.ndarray = vectors[:, -1] ** 2
        return scores
