"""The workloads that speed is judged by. No evaluation is timed."""

from collections.abc import Callable

import numpy as np
import torch

from fedavg.data import ArrayData
from fedavg.plan import Plan
from fedavg.types import Examples

VOCABULARY, UNROLL = 86, 80


def mnist(task: str, batch: float, rounds: int, workers: int) -> Plan:
    return Plan(task=task, data="mnist", C=0.1, E=1, B=batch, rounds=rounds, eval_every=rounds, workers=workers)


def characters(rounds: int, workers: int) -> Plan:
    """10 clients x 50 sequences of 80 characters, half of which follow from the one before."""
    rng = np.random.default_rng(1234)
    follower = rng.permutation(VOCABULARY)
    text = np.empty((500, UNROLL + 1), np.int64)
    text[:, 0] = rng.integers(0, VOCABULARY, 500)
    for t in range(UNROLL):
        known = rng.random(500) < 0.5
        text[:, t + 1] = np.where(known, follower[text[:, t]], rng.integers(0, 4, 500))
    x, y = torch.from_numpy(text[:, :-1].copy()), torch.from_numpy(text[:, 1:].copy())
    parts = np.split(np.arange(500), 10)
    data = ArrayData("characters", x, y, parts, Examples(x[:50], y[:50]))
    return Plan(task="shakespeare-lstm", data=data, C=1.0, E=1, B=10, rounds=rounds, eval_every=rounds, workers=workers)


#: (rounds, workers) -> the plan of a workload.
WORKLOADS: dict[str, Callable[[int, int], Plan]] = {
    "W1": lambda rounds, workers: mnist("mnist-2nn", 10, rounds, workers),
    "W2": lambda rounds, workers: mnist("mnist-2nn", float("inf"), rounds, workers),
    "W3": lambda rounds, workers: mnist("mnist-cnn", 10, rounds, workers),
    "W4": characters,
}
#: Rounds to time: enough for a median, short enough to wait for.
ROUNDS = {"W1": 22, "W2": 22, "W3": 5, "W4": 6}
