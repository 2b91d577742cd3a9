"""Federated averaging, made real.

The eight ideas: Task, FederatedData, Algorithm, Update / Sum, Stage, Codec, Fleet, Plan.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedavg.algorithms import Algorithm
    from fedavg.client import Client
    from fedavg.codecs import Codec
    from fedavg.data import ArrayData, load
    from fedavg.errors import FedAvgError
    from fedavg.fleets import Fleet, LocalFleet
    from fedavg.metrics import Metric
    from fedavg.optimizers import SGD, Adam, AdamW, Correction, Optimizer
    from fedavg.options import Schedule
    from fedavg.plan import Plan
    from fedavg.ragged import Ragged, padded
    from fedavg.rates import Constant, Cosine, Exponential, Rate, Step
    from fedavg.runner import Result, resume, run
    from fedavg.server import Event, Round, Start, train
    from fedavg.stages import Stage
    from fedavg.tasks import Task
    from fedavg.types import Examples, FederatedData, State, Sum, Update, Work

_HOMES = {
    "fedavg.algorithms": ["Algorithm"],
    "fedavg.client": ["Client"],
    "fedavg.codecs": ["Codec"],
    "fedavg.data": ["ArrayData", "load"],
    "fedavg.errors": ["FedAvgError"],
    "fedavg.fleets": ["Fleet", "LocalFleet"],
    "fedavg.metrics": ["Metric"],
    "fedavg.optimizers": ["SGD", "Adam", "AdamW", "Correction", "Optimizer"],
    "fedavg.options": ["Schedule"],
    "fedavg.plan": ["Plan"],
    "fedavg.ragged": ["Ragged", "padded"],
    "fedavg.rates": ["Constant", "Cosine", "Exponential", "Rate", "Step"],
    "fedavg.runner": ["Result", "resume", "run"],
    "fedavg.server": ["Event", "Round", "Start", "train"],
    "fedavg.stages": ["Stage"],
    "fedavg.tasks": ["Task"],
    "fedavg.types": ["Examples", "FederatedData", "State", "Sum", "Update", "Work"],
}

__all__ = [
    "SGD", "Adam", "AdamW", "Algorithm", "ArrayData", "Client", "Codec", "Constant", "Correction", "Cosine", "Event",
    "Examples", "Exponential", "FedAvgError", "FederatedData", "Fleet", "LocalFleet", "Metric", "Optimizer", "Plan",
    "Ragged", "Rate", "Result", "Round", "Schedule", "Stage", "Start", "State", "Step", "Sum", "Task", "Update", "Work",
    "load", "padded", "resume", "run", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Names are imported on first use, so that `fedavg --help` need not wait for PyTorch."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(import_module(module), name)
            return globals()[name]
    raise AttributeError(f"module 'fedavg' has no attribute '{name}'")
