"""FedProx: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Algorithm 2 (§3.2).

    client k:  w^k ≈ argmin_w h_k(w; w_t) = F_k(w) + (mu / 2) |w - w_t|²
               here by E epochs of SGD on h_k:  w -= eta (∇l(w; b) + mu (w - w_t))
    server:    as FedAvg

The proximal term keeps clients with different data near the shared model. With mu = 0 it is FedAvg, bit for bit. The
paper lets stragglers do less work (its γ-inexact solutions); here every client does the E epochs of the plan.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fedavg.algorithms.fedavg import FedAvg
from fedavg.algorithms.settings import require
from fedavg.optimizers import Correction
from fedavg.types import Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients are pulled back, by mu, to where they started (Li et al. 2020).

    >>> str(FedProx(mu=0.1))
    'fedprox:0.1'
    """

    name = "fedprox"
    mu: float = 0.01

    def __post_init__(self) -> None:
        require(self, "mu", low=0)

    def client_update(self, client: "Client", weights: Tensor, work: Work) -> Update:
        client.load(weights)
        loss = client.epochs(work, Correction(pull=self.mu, towards=weights))  # ∇l(w; b) + mu (w - w_t)
        return Update(client.weights - weights, weight=client.n, metrics={"train_loss": loss})
