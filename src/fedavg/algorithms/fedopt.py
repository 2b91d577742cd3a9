"""FedAdagrad, FedYogi, FedAdam: Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 2.

    server:  Δ = Σ (n_k/m_t) (w^k - w_t);   m = beta1 m + (1 - beta1) Δ
             v = v + Δ²                                     (FedAdagrad)
             v = v - (1 - beta2) Δ² sign(v - Δ²)            (FedYogi)
             v = beta2 v + (1 - beta2) Δ²                   (FedAdam)
             w_{t+1} = w_t + lr m / (√v + tau)
    client:  as FedAvg

v starts at tau², the least that the paper allows, and m at 0; there is no bias correction. Algorithm 2 weights clients
equally; here they are weighted by n_k, as in FedAvg. With beta1 = 0, beta2 = 1 and lr = 2 tau, FedYogi and FedAdam are
FedAvg.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedavg.algorithms.fedavg import FedAvg
from fedavg.algorithms.settings import require
from fedavg.types import State, Sum, Work


class FedOpt(FedAvg):
    """The step that the three share; `second` is where they differ."""

    lr: float
    beta1: float
    tau: float

    @abstractmethod
    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v, from Δ² (`square`)."""

    def initial(self, weights: Tensor) -> State:
        return State(weights, {"m": torch.zeros_like(weights), "v": torch.full_like(weights, self.tau**2)})

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        change = total.mean
        m = self.beta1 * state.slots["m"].double() + (1 - self.beta1) * change
        v = self.second(state.slots["v"].double(), change**2)
        w = state.weights.double() + self.lr * m / (v.sqrt() + self.tau)
        return State(w.float(), {"m": m.float(), "v": v.float()})

    def __post_init__(self) -> None:
        require(self, "lr", low=0, above=True)
        require(self, "tau", low=0, above=True)
        for name in ("beta1", "beta2"):
            if hasattr(self, name):
                require(self, name, low=0, high=1)


@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    """FedAvg whose server steps by Adagrad (Reddi et al. 2021).

    >>> str(FedAdagrad(lr=0.05))
    'fedadagrad:0.05'
    """

    name = "fedadagrad"
    lr: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True)
class FedYogi(FedOpt):
    """FedAvg whose server steps by Yogi (Reddi et al. 2021).

    >>> str(FedYogi(lr=0.05))
    'fedyogi:0.05'
    """

    name = "fedyogi"
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """FedAvg whose server steps by Adam (Reddi et al. 2021).

    >>> str(FedAdam(lr=0.05))
    'fedadam:0.05'
    """

    name = "fedadam"
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square
