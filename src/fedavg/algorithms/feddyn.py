"""FedDyn: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", Algorithm 1.

    client k:  w^k ≈ argmin_w F_k(w) - <g_k, w> + (alpha / 2) |w - w_t|²
               here by E epochs of SGD:  w -= eta (∇l(w; b) - g_k + alpha (w - w_t));   keeps g_k -= alpha (w^k - w_t)
    server:    h -= alpha (|S| / K) mean_S(w^k - w_t);   w_{t+1} = mean_S(w^k) - h / alpha

g_k and h (initially 0) make the global optimum a fixed point of the clients' own problems, which FedProx's pull alone
does not. The means weight clients by n_k, as in FedAvg; for clients of equal size this is the paper's mean. A client
keeps one vector and sends one.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedavg.algorithms.fedavg import FedAvg
from fedavg.algorithms.settings import require
from fedavg.optimizers import Correction
from fedavg.types import State, Sum, Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """Clients' losses are corrected so that all agree on the optimum (Acar et al. 2021).

    >>> str(FedDyn(0.05))
    'feddyn:0.05'
    """

    name = "feddyn"
    keeps_state = True
    alpha: float = 0.01

    def __post_init__(self) -> None:
        require(self, "alpha", low=0, above=True)

    def initial(self, weights: Tensor) -> State:
        return State(weights, {"h": torch.zeros_like(weights)})

    def client_update(self, client: "Client", weights: Tensor, work: Work) -> Update:
        g = client.state.get("g", torch.zeros_like(weights))
        client.load(weights)
        loss = client.epochs(work, Correction(pull=self.alpha, towards=weights, drift=-g))
        change = client.weights - weights
        client.state["g"] = g - self.alpha * change
        return Update(change, weight=client.n, metrics={"train_loss": loss})

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        h = state.slots["h"].double() - self.alpha * (total.count / total.population) * total.mean
        w = state.weights.double() + total.mean - h / self.alpha
        return State(w.float(), {"h": h.float()})
