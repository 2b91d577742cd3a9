"""SCAFFOLD: Karimireddy et al. 2020, "Stochastic Controlled Averaging for Federated Learning", Algorithm 1, option II.

    client i:  y = x;   steps K times:  y -= eta (g_i(y) - c_i + c)
               c_i⁺ = c_i - c + (x - y) / (K eta);   sends (Δy, Δc) = (y - x, c_i⁺ - c_i);   keeps c_i = c_i⁺
    server:    x += lr mean_S(Δy);   c += (|S| / N) mean_S(Δc)

The control variates c_i and c (initially 0) estimate the gradients of the client and of all clients; their difference
removes the drift of a client's steps towards its own optimum. The means weight clients by n_k, as in FedAvg; for
clients of equal size this is the paper's mean. The first round with lr = 1 is FedAvg, bit for bit. A client sends and
receives two vectors. With momentum, K is the total weight of the gradients, FedNova's |a_i|_1: otherwise c_i would be a
multiple of the gradient that it estimates, and since the drift passes through the momentum too, the clients' steps
would diverge.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedavg.algorithms.algorithm import PlanOptions
from fedavg.algorithms.fedavg import FedAvg
from fedavg.algorithms.settings import require, require_linear
from fedavg.optimizers import Correction
from fedavg.types import State, Sum, Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Control variates against client drift (Karimireddy et al. 2020).

    >>> str(Scaffold())
    'scaffold'
    """

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
        x, c = weights.chunk(2)
        c_i = client.state["c"] if "c" in client.state else torch.zeros_like(c)
        client.load(x)
        loss = client.epochs(work, Correction(drift=c - c_i))  # g_i(y) - c_i + c
        change = client.weights - x
        K = client.optimizer.effective_steps(work.epochs * client.steps(work.batch))
        assert K, "see `check`"
        c_change = -c - change / (K * work.lr)
        client.state["c"] = c_i + c_change
        return Update(torch.cat([change, c_change]), weight=client.n, metrics={"train_loss": loss})

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        change, c_change = total.mean.chunk(2)
        x = state.weights.double() + self.lr * change
        c = state.slots["c"].double() + (total.count / total.population) * c_change
        return State(x.float(), {"c": c.float()})

    def check(self, plan: PlanOptions) -> None:
        require_linear(plan, self.name, "control variates are means of gradients")
