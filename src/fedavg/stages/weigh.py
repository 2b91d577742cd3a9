"""How much a client counts: at most 1, over a fixed denominator.

    weigh:equal        every client 1
    weigh:cap=100      min(n_k / 100, 1)

The sum is divided by the expected sum of the cohort's weights, q W with W the sum of all clients' weights, and not by
the actual sum: then one client changes the mean by at most S/(q W) (McMahan et al. 2018, the first of their two
estimators). W is assumed to be public.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedavg.errors import PlanError
from fedavg.specs import bound
from fedavg.stages.stage import Stage, Whole
from fedavg.types import Population, Sum, Update, Work


@dataclass(frozen=True)
class Weigh(Stage):
    """How much a client counts: at most 1, over a fixed denominator.

    >>> str(Weigh('100'))
    'weigh:100'
    """

    caps_weight = True
    cap: str = "equal"
    #: W, if the server does not know the sizes of its clients [computed from them].
    total: float = 0.0
    denominator: float = bound(0.0)

    def __post_init__(self) -> None:
        try:
            good = self.cap == "equal" or 0 < float(self.cap) < float("inf")
        except ValueError:
            good = False
        if not good or not 0 <= self.total < float("inf"):
            raise PlanError(f"weigh: got '{self.cap}'; expected 'weigh:equal', or 'weigh:cap=100' for min(n_k/100, 1)")

    @property
    def weighs_alike(self) -> bool:  # type: ignore[override]
        return self.cap == "equal"

    def bind(self, whole: Whole) -> "Weigh":
        everyone = self._everyone(whole.population)
        return replace(self, denominator=everyone * whole.cohort_size / whole.clients.with_data) if everyone else self

    def on_client(self, update: Update, work: Work, rng: np.random.Generator) -> Update:
        return replace(update, weight=self._weight(update.weight))

    def on_arrival(self, update: Update, work: Work) -> Update:
        return update if 0 <= update.weight <= 1 else replace(update, weight=min(max(update.weight, 0.0), 1.0))

    def on_sum(self, total: Sum, work: Work, rng: np.random.Generator) -> Sum:
        if not self.denominator:
            raise PlanError("weigh: nobody knows how many examples all clients have; expected 'total' in weigh:cap")
        return replace(total, weight=self.denominator)

    def _everyone(self, clients: Population | None) -> float:
        """W, the sum of all clients' weights; 0 if it is not known, as on a device, which does not need it."""
        if clients is None:
            return 0.0
        if self.total:
            return self.total
        if clients.sizes is None:
            return float(clients.count) if self.cap == "equal" else 0.0
        return sum(self._weight(float(n)) for n in clients.sizes[clients.sizes > 0])

    def _weight(self, n: float) -> float:
        return 1.0 if self.cap == "equal" else min(n / float(self.cap), 1.0)
