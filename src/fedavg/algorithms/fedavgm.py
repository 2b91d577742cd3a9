"""FedAvgM, server momentum: Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for
Federated Visual Classification", §4.

    server:  v = momentum v + Σ (n_k/m_t) Δ_k;   w_{t+1} = w_t + lr v        (Δ_k = w^k - w_t)
    client:  as FedAvg

`lr` is the server's rate (1 in the paper). With momentum = 0 and lr = 1 it is FedAvg, bit for bit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedavg.algorithms.fedavg import FedAvg
from fedavg.algorithms.settings import require
from fedavg.types import State, Sum, Work


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg with momentum on the server (Hsu et al. 2019).

    >>> str(FedAvgM(0.5))
    'fedavgm:0.5'
    """

    name = "fedavgm"
    momentum: float = 0.9
    lr: float = 1.0

    def __post_init__(self) -> None:
        require(self, "momentum", low=0, high=1)
        require(self, "lr", low=0, above=True)

    def initial(self, weights: Tensor) -> State:
        return State(weights, {"v": torch.zeros_like(weights)})

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        v = self.momentum * state.slots["v"].double() + total.mean
        w = state.weights.double() + self.lr * v
        return State(w.float(), {"v": v.float()})
