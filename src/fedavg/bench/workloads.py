"""The workloads that speed is judged by. No evaluation is timed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedavg.bench.models import ADAPTED, ENCODER, RESNET
from fedavg.bench.modules import LENGTH, VOCABULARY
from fedavg.data import ArrayData
from fedavg.data.location import data_directory
from fedavg.data.mnist import read
from fedavg.plan import Plan
from fedavg.tasks import Task
from fedavg.types import Examples

#: Characters of W4, and how many of them are in a sequence.
CHARACTERS, UNROLL = 86, 80


def mnist(task: str, batch: float, **options: Any) -> Plan:
    return Plan(task=task, data="mnist", C=0.1, B=batch, **{"E": 1, **options})


def characters() -> Plan:
    """10 clients x 50 sequences of 80 characters."""
    data = sequences("characters", [50] * 10, CHARACTERS, UNROLL)
    return Plan(task="shakespeare-lstm", data=data, C=1.0, E=1, B=10)


def language(task: Task) -> Plan:
    """20 clients of 20 to 60 sequences of 32 tokens."""
    return Plan(task=task, data=sequences("tokens", between(20, 60, 20), VOCABULARY, LENGTH), C=0.5, E=1, B=10)


def colours() -> Plan:
    """20 clients of 30 to 90 images of 32 x 32 in colour: ten patterns and as much noise."""
    rng = np.random.default_rng(1234)
    sizes = between(30, 90, 20)
    y = rng.integers(0, 10, sum(sizes))
    patterns, noise = rng.random((10, 3, 32, 32)), rng.random((len(y), 3, 32, 32))
    x = torch.from_numpy(((patterns[y] + noise) * 127).astype(np.uint8))
    return Plan(task=RESNET, data=split("colours", x, torch.from_numpy(y), sizes), C=0.5, E=1, B=10)


def unlike_sizes(sizes: list[int], **options: Any) -> Plan:
    """The 2NN on clients of these sizes, whose examples are MNIST's."""
    train, _ = read(data_directory(None))
    data = split("digits", train.x[: sum(sizes)], train.y[: sum(sizes)], sizes)
    return replace(mnist("mnist-2nn", 10, **options), data=data)


def sequences(name: str, sizes: list[int], tokens: int, length: int) -> ArrayData:
    """Of which every second token follows from the one before."""
    rng = np.random.default_rng(1234)
    follower, count = rng.permutation(tokens), sum(sizes)
    text = np.empty((count, length + 1), np.int64)
    text[:, 0] = rng.integers(0, tokens, count)
    for t in range(length):
        known = rng.random(count) < 0.5
        text[:, t + 1] = np.where(known, follower[text[:, t]], rng.integers(0, 4, count))
    return split(name, torch.from_numpy(text[:, :-1].copy()), torch.from_numpy(text[:, 1:].copy()), sizes)


def between(least: int, most: int, clients: int) -> list[int]:
    """The sizes of this many clients, evenly drawn."""
    return list(map(int, np.random.default_rng(7).integers(least, most + 1, clients)))


def split(name: str, x: torch.Tensor, y: torch.Tensor, sizes: list[int]) -> ArrayData:
    """Clients of these sizes, one after another."""
    parts = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    return ArrayData(name, x, y, parts, Examples(x[:50], y[:50]))


#: The plan of a workload.
_PLANS: dict[str, Callable[[], Plan]] = {
    "W1": lambda: mnist("mnist-2nn", 10),
    "W2": lambda: mnist("mnist-2nn", float("inf")),
    "W3": lambda: mnist("mnist-cnn", 10),
    "W4": characters,
    "W5": lambda: language(ENCODER),
    "W6": colours,
    "W7": lambda: unlike_sizes(between(101, 996, 100), E=5),
    "W8": lambda: mnist("mnist-2nn", 10, optimizer="sgd:momentum=0.9"),
    "W9": lambda: language(ADAPTED),
    "W10": lambda: unlike_sizes(between(1, 5, 10_000)),
}
#: Rounds to time: six that are cold, and enough for a median after them, short enough to wait for.
ROUNDS = {"W1": 22, "W2": 22, "W3": 9, "W4": 9, "W5": 22, "W6": 14, "W7": 16, "W8": 22, "W9": 10, "W10": 14}


def plan_of(workload: str, rounds: int, workers: int, start_method: str = "auto") -> Plan:
    plan = _PLANS[workload]()
    return replace(plan, rounds=rounds, eval_every=rounds, workers=workers, start_method=start_method)
