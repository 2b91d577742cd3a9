"""Min-max: Shejwalkar and Houmansadr 2021, "Manipulating the Byzantine", §4.3.

    lie = mean + gamma p   with the largest gamma for which  max_i |lie - x_i| <= max_ij |x_i - x_j|

p is -mean / |mean| (unit), -(standard deviation) (std) or -sign(mean) (sign). The condition is quadratic in gamma, so
gamma is known without a search.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedavg.attacks.alie import deviation
from fedavg.attacks.attack import Attack, View
from fedavg.attacks.search import mean_weights
from fedavg.robust.rows import length, squared_distances


@dataclass(frozen=True)
class MinMax(Attack):
    """All liars send a point as far from the honest mean as it can be without standing out. They see all.

    >>> str(MinMax("std"))
    'minmax:std'
    """

    name = "minmax"
    sees = "honest"
    direction: Literal["unit", "std", "sign"] = "unit"

    def forge(self, view: View) -> np.ndarray:
        honest = view.honest
        mean = np.append(mean_weights(len(honest)), 0.0)
        wide = honest.extended(self._direction(view).astype(np.float32))
        return wide.combined(np.append(mean[:-1], _largest(wide.gram))).astype(np.float32)

    def _direction(self, view: View) -> np.ndarray:
        if self.direction == "std":
            return -deviation(view.honest)
        mean = view.honest.combined(mean_weights(len(view.honest)))
        if self.direction == "sign":
            signs: np.ndarray = -np.sign(mean)
            return signs
        long = length(mean)
        return -mean / long if long else mean


def _largest(gram: np.ndarray) -> float:
    """Gamma, from the inner products of the honest updates and, last, the direction p."""
    n = len(gram) - 1
    mean = np.append(mean_weights(n), 0.0)
    farthest = squared_distances(gram[:n, :n]).max()
    square = gram[n, n]
    if square <= 0:
        return 0.0
    along = gram[n] @ mean - gram[n, :n]  # p . (mean - x_i)
    away = mean @ gram @ mean - 2 * (gram[:n] @ mean) + np.diagonal(gram)[:n]  # |mean - x_i|²
    roots = (-along + np.sqrt(np.maximum(along**2 - square * (away - farthest), 0.0))) / square
    return float(max(roots.min(), 0.0))
