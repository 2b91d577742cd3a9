"""Centred clipping: Karimireddy, He and Jaggi 2021, "Learning from History for Byzantine Robust Optimization", Alg. 2.

    v = the last round's result (at first 0);   steps times:  v += mean_i (x_i - v) min(1, radius / |x_i - v|)

The last round's result is kept in the server's state, so that a resumed run continues from it.
"""

from dataclasses import dataclass

import numpy as np

from fedavg.errors import PlanError
from fedavg.robust.reducer import Case, Reducer
from fedavg.robust.rows import Rows


@dataclass(frozen=True)
class CentredClipping(Reducer):
    """The last result, moved by each update by at most `radius` over n.

    >>> str(CentredClipping(10.0))
    'centred:10.0'
    """

    name = "centred"
    remembers = True
    radius: float
    steps: int = 1

    def __post_init__(self) -> None:
        if not (self.radius > 0 and self.steps >= 1):
            raise PlanError(
                f"centred: got radius={self.radius:g}, steps={self.steps}; expected a radius above 0, 1 or more steps"
            )

    def reduce(self, rows: Rows, case: Case) -> np.ndarray:
        start = np.zeros(rows.size, np.float32) if case.previous is None else case.previous.astype(np.float32)
        wide = rows.extended(start)
        gram, n = wide.gram, len(rows)
        v = np.zeros(n + 1)
        v[n] = 1.0
        for _step in range(self.steps):
            squares = np.diagonal(gram)[:n] - 2 * (gram @ v)[:n] + v @ gram @ v
            distances = np.sqrt(np.maximum(squares, 0.0))
            pulls = self.radius / np.maximum(distances, self.radius) / n
            v = (1 - pulls.sum()) * v
            v[:n] += pulls
        return wide.combined(v)
