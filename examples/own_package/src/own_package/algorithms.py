"""FedAvg whose server averages its own steps: w moves by the mean of this change and `memory` of the one before."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedavg.algorithms.fedavg import FedAvg
from fedavg.types import State, Sum, Work


@dataclass(frozen=True)
class Smoothed(FedAvg):
    """`memory` from 0 (FedAvg, bit for bit) to below 1."""

    name = "smoothed"
    memory: float = 0.5

    def initial(self, weights: Tensor) -> State:
        return State(weights, {"before": torch.zeros(len(weights), dtype=torch.float64)})

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        change = (1 - self.memory) * total.mean + self.memory * state.slots["before"]
        return State((state.weights.double() + change).float(), {"before": change})
