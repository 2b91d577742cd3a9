"""FedSGD in its gradient form (§2): clients send ∇F_k(w_t), the server takes one step with the weighted mean.

    w_{t+1} = w_t - eta Σ_{k in S_t} (n_k / m_t) g_k

Equal to FedAvg with E = 1 and B = ∞; here the learning rate stays on the server.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from torch import Tensor

from fedavg.algorithms.algorithm import Algorithm, PlanOptions
from fedavg.algorithms.settings import require_plain_sgd
from fedavg.errors import PlanError
from fedavg.types import State, Sum, Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client


@dataclass(frozen=True)
class FedSGD(Algorithm):
    """The gradient over all data of the cohort, one step per round: the paper's baseline.

    >>> str(FedSGD())
    'fedsgd'
    """

    name = "fedsgd"

    def client_update(self, client: "Client", weights: Tensor, work: Work) -> Update:
        client.load(weights)
        gradient, loss = client.gradient()
        return Update(gradient, weight=client.n, metrics={"train_loss": loss})

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        return replace(state, weights=(state.weights.double() - work.lr * total.mean).float())

    def check(self, plan: PlanOptions) -> None:
        if plan.schedule("E").values != {1} or plan.schedule("B").values != {inf}:
            raise PlanError(
                f"algorithm fedsgd: got E={plan.E}, B={plan.B}; expected E=1 and B=inf (a gradient a round)"
            )
        require_plain_sgd(plan, self.name, "clients send a gradient and take no step")
