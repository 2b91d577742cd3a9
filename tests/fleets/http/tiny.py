"""A task and data that train in milliseconds, importable by the names in a served plan."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedavg import Adapters, ArrayData, Examples, FedAvg, MacroF1, Plan
from toys import TOY, toy_data

SIZES = (7, 12, 6, 5, 20, 9, 11, 8)
TASK = TOY
DATA = toy_data(SIZES)


def tiny_plan(**changes: object) -> Plan:
    values = {"task": "tiny:TASK", "data": "tiny:DATA", "C": 0.5, "E": 2, "B": 4, "lr": 0.1, "workers": 1}
    return Plan(**{**values, **changes})


def few_plan(**changes: object) -> Plan:
    """With half of the clients, for tests in which each of them is a process."""
    return tiny_plan(**{"data": "tiny:FEW", "clients": len(FEW), **changes})


def _first(called: str, count: int, test: Examples | None) -> ArrayData:
    parts = [DATA.client(k) for k in range(count)]
    x, y = (torch.cat([getattr(part, name) for part in parts]) for name in "xy")
    return ArrayData(called, x, y, np.split(np.arange(len(y)), np.cumsum(SIZES[:count])[:-1]), test)


#: The first four clients; and those without a test set.
FEW, BARE = _first("few", 4, DATA.test), _first("bare", 4, None)


@dataclass(frozen=True)
class Judging(FedAvg):
    """Clients judge the model that they received, on their training examples."""

    name = "judging"
    metrics = ("train_loss", MacroF1(3))

    def client_update(self, client, weights, work):
        client.load(weights)
        f1 = client.sums(MacroF1(3))
        update = super().client_update(client, weights, work)
        return replace(update, metrics={**update.metrics, "f1": f1})


@dataclass(frozen=True)
class LastLayer(Adapters):
    """Only the last layer is trained; the others stay as initialised."""

    def adapt(self, module, head):
        module[-1].requires_grad_(True)
        return module
