"""Federated algorithms. A new one is one file and one line here."""

from fedavg.algorithms.algorithm import Algorithm
from fedavg.algorithms.fedavg import FedAvg
from fedavg.algorithms.fedsgd import FedSGD
from fedavg.algorithms.oneshot import OneShot
from fedavg.algorithms.sgd import SGD

ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": FedAvg(),
    "fedsgd": FedSGD(),
    "oneshot": OneShot(),
    "sgd": SGD(),
}

__all__ = ["ALGORITHMS", "Algorithm"]
