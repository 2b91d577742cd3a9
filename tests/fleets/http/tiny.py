"""A task and data that train in milliseconds, under the names that a served plan gives them."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedavg import Adapters, ArrayData, FedAvg, MacroF1, Plan
from toys import TOY, toy_data

SIZES = (7, 12, 6, 5, 20, 9, 11, 8)
TASK = TOY
DATA = toy_data(SIZES)


def tiny_plan(**changes: object) -> Plan:
    values = {"task": "tiny:TASK", "data": "tiny:DATA", "C": 0.5, "E": 2, "B": 4, "lr": 0.1, "workers": 1}
    return Plan(**{**values, **changes})


def _without_test() -> ArrayData:
    parts = [DATA.client(k) for k in range(len(DATA))]
    x, y = (torch.cat([getattr(part, name) for part in parts]) for name in "xy")
    return ArrayData("bare", x, y, np.split(np.arange(len(y)), np.cumsum(SIZES)[:-1]), None)


#: The same clients, and no test set.
BARE = _without_test()


@dataclass(frozen=True)
class Judging(FedAvg):
    """Clients judge the model that they were sent, on what they train on."""

    name = "judging"
    metrics = ("train_loss", MacroF1(3))

    def client_update(self, client, weights, work):
        client.load(weights)
        f1 = client.sums(MacroF1(3))
        update = super().client_update(client, weights, work)
        return replace(update, metrics={**update.metrics, "f1": f1})


@dataclass(frozen=True)
class LastLayer(Adapters):
    """All but the last layer stays as it was drawn."""

    def adapt(self, module, head):
        module[-1].requires_grad_(True)
        return module
