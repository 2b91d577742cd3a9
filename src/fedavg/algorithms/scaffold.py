"""SCAFFOLD: Karimireddy et al. 2020, "Stochastic Controlled Averaging for Federated Learning", Algorithm 1, option II.

    client i:  y = x;   steps K times:  y -= eta (g_i(y) - c_i + c)
               c_i⁺ = c_i - c + (x - y) / (K eta);   sends (Δy, Δc) = (y - x, c_i⁺ - c_i);   keeps c_i = c_i⁺
    server:    x += lr mean_S(Δy);   c += (|S| / N) mean_S(Δc)

The control variates c_i and c (at first 0) estimate the gradients of the client and of all; their difference takes out
the drift of a client's steps towards its own optimum. The means weigh clients by n_k as FedAvg does, which for clients
of one size is the paper's. The first round with lr = 1 is FedAvg, bit for bit. A client sends and is sent two vectors.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedavg.algorithms.fedavg import FedAvg
from fedavg.algorithms.settings import require
from fedavg.types import State, Sum, Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client


@dataclass(frozen=True)
class Scaffold(FedAvg):
    name = "scaffold"
    keeps_state = True
    vectors_down = 2
    vectors_up = 2
    lr: float = 1.0

    def __post_init__(self) -> None:
        require(self, "lr", low=0, above=True)

    def initial(self, weights: Tensor) -> State:
        return State(weights, {"c": torch.zeros_like(weights)})

    def shared(self, state: State) -> Tensor:
        return torch.cat([state.weights, state.slots["c"]])

    def client_update(self, client: "Client", weights: Tensor, work: Work) -> Update:
        E, B, eta = work.epochs, work.batch, work.lr
        x, c = weights.chunk(2)
        c_i = client.state.get("c", torch.zeros_like(c))
        drift = c - c_i
        client.load(x)
        for _epoch in range(E):
            loss = client.sgd_epoch(B, eta, lambda y: drift)
        change = client.weights - x
        K = E * client.steps(B)
        c_change = -c - change / (K * eta)
        client.state["c"] = c_i + c_change
        return Update(torch.cat([change, c_change]), weight=client.n, metrics={"train_loss": loss})

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        change, c_change = total.mean.chunk(2)
        x = state.weights.double() + self.lr * change
        c = state.slots["c"].double() + (total.count / total.population) * c_change
        return State(x.float(), {"c": c.float()})
