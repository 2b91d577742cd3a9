"""Plain SGD on the pooled data (§3, CIFAR): not federated, the baseline. One minibatch counts as one round."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fedavg.algorithms.algorithm import Algorithm, PlanOptions
from fedavg.algorithms.fedavg import FedAvg
from fedavg.algorithms.settings import optimizer_of
from fedavg.errors import PlanError
from fedavg.types import State, Sum, Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client


@dataclass(frozen=True)
class PooledSGD(Algorithm):
    """Plain SGD on all data in one place: not federated, the paper's baseline.

    >>> str(PooledSGD())
    'sgd'
    """

    name = "sgd"
    pools_data = True

    def client_update(self, client: "Client", weights: Tensor, work: Work) -> Update:
        client.load(weights)
        size, loss = client.step(work.round, work.batch, work.lr)
        return Update(client.weights - weights, weight=size, metrics={"train_loss": loss})

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        return FedAvg().server_update(state, total, work)

    def check(self, plan: PlanOptions) -> None:
        if plan.schedule("E").values != {1}:
            raise PlanError(f"algorithm sgd: got E={plan.E}; expected E=1 (one minibatch of size B is one round)")
        optimizer = optimizer_of(plan)
        if optimizer.slots and not optimizer.keep:
            raise PlanError(
                f"algorithm sgd: got optimizer '{plan.optimizer}', which would start from zero at every step; "
                f"expected '{plan.optimizer}:keep=true'"
            )
