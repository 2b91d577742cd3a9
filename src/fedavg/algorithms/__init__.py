"""Federated algorithms. A new one is one file and one line here."""

from fedavg.algorithms.adaptive import Adaptive
from fedavg.algorithms.algorithm import Algorithm, PlanOptions
from fedavg.algorithms.fedavg import FedAvg
from fedavg.algorithms.fedavgm import FedAvgM
from fedavg.algorithms.fedbuff import FedBuff
from fedavg.algorithms.feddyn import FedDyn
from fedavg.algorithms.fednova import FedNova
from fedavg.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from fedavg.algorithms.fedprox import FedProx
from fedavg.algorithms.fedsgd import FedSGD
from fedavg.algorithms.oneshot import OneShot
from fedavg.algorithms.scaffold import Scaffold
from fedavg.algorithms.sgd import PooledSGD
from fedavg.specs import make

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedsgd": FedSGD,
    "oneshot": OneShot,
    "sgd": PooledSGD,
    "fedprox": FedProx,
    "fedavgm": FedAvgM,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fednova": FedNova,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "fedbuff": FedBuff,
    "adaptive": Adaptive,
}


def make_algorithm(value: str | Algorithm) -> Algorithm:
    """The algorithm that a plan specifies: the object, or its name with settings after colons."""
    return make(value, Algorithm)  # type: ignore[type-abstract]


__all__ = [
    "ALGORITHMS", "Adaptive", "Algorithm", "FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedBuff", "FedDyn",
    "FedNova", "FedProx", "FedSGD", "FedYogi", "OneShot", "PlanOptions", "PooledSGD", "Scaffold", "make_algorithm",
]  # fmt: skip
