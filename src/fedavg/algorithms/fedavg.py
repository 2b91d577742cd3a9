"""Federated averaging: Algorithm 1 of McMahan et al. 2017, with its erratum.

    server:  each round t:  m = max(C K, 1);  S_t = random set of m clients
             for each k in S_t in parallel:  w^k = ClientUpdate(k, w_t)
             w_{t+1} = Σ_{k in S_t} (n_k / m_t) w^k   with  m_t = Σ_{k in S_t} n_k

    ClientUpdate(k, w):  for each local epoch 1..E:  for each batch b of size B:  w -= eta ∇l(w; b)

The choice of S_t and the loop over rounds are the same for every algorithm: see `fedavg.server`.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from fedavg.algorithms.algorithm import Algorithm, PlanOptions
from fedavg.types import State, Sum, Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Federated averaging, as in the paper.

    >>> str(FedAvg())
    'fedavg'
    """

    name = "fedavg"

    def client_update(self, client: "Client", weights: Tensor, work: Work) -> Update:
        client.load(weights)
        loss = client.epochs(work)  # E times, for each batch b of size B: w -= eta ∇l(w; b)
        return Update(client.weights - weights, weight=client.n, metrics={"train_loss": loss})

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        # Σ (n_k/m_t) w^k = w_t + Σ (n_k/m_t) (w^k - w_t): clients send their change, the server adds its mean.
        return replace(state, weights=(state.weights.double() + total.mean).float())

    def check(self, plan: PlanOptions) -> None:
        pass
