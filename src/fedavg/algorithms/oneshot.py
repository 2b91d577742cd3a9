"""One-shot averaging (§2): the other endpoint. Every client trains alone to the end, then models are averaged once."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fedavg.algorithms.algorithm import Algorithm, PlanOptions
from fedavg.algorithms.fedavg import FedAvg
from fedavg.errors import PlanError
from fedavg.types import State, Sum, Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client


@dataclass(frozen=True)
class OneShot(Algorithm):
    """Everyone trains once, and the models are averaged once.

    >>> str(OneShot())
    'oneshot'
    """

    name = "oneshot"

    def client_update(self, client: "Client", weights: Tensor, work: Work) -> Update:
        return FedAvg().client_update(client, weights, work)

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        return FedAvg().server_update(state, total, work)

    def check(self, plan: PlanOptions) -> None:
        if plan.rounds != 1:
            raise PlanError(f"algorithm oneshot: got rounds={plan.rounds}; expected rounds=1 (use a large E instead)")
