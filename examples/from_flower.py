"""Flower's PyTorch quickstart, ported.

Flower's first example trains a small CNN on CIFAR-10 with 10 clients for 3 rounds; each client holds out a fifth of
its images, and half of the clients judge the model on them. This is the same network, data, batch size and rate. What
became of its parts:

    Flower                                        here
    task.py: Net                                  net(), below
    task.py: load_data, FederatedDataset, Iid     data="cifar10", partition="iid", clients=10
    task.py: Compose(ToTensor, Normalize)         Task(prepare=...)
    task.py: train, test                          nothing to write: loss, optimiser and metrics are named
    client_app.py: @app.train, @app.evaluate      nothing to write; an `Algorithm` of your own has a client half
    task.py: train_test_split(test_size=0.2)      Plan(holdout=0.2)
    server_app.py: FedAvg(fraction_evaluate=0.5)  Plan(eval_clients=5); algorithm="fedavg" is the default
    pyproject.toml: [tool.flwr.app.config]        the plan: Python, TOML or the command line
    flwr run .                                    python examples/from_flower.py, or fedavg run plan.toml

Run it (fetches CIFAR-10 the first time, 170 MB):
    python examples/from_flower.py

It prints loss and accuracy after each round, on the test set and as clients judge.
"""

import sys

import numpy as np
import torch
from torch import nn

import fedavg

TINY = "--tiny" in sys.argv


def net() -> nn.Module:
    """The small CNN of PyTorch's 60-minute tutorial."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def normalised(images: torch.Tensor) -> torch.Tensor:
    """ToTensor and Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))."""
    return (images / 255 - 0.5) / 0.5


def random_images() -> fedavg.FederatedData:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (200, 3, 32, 32), np.uint8), rng.integers(0, 10, 200)
    return fedavg.from_arrays(x, y, "iid", clients=10)


data = {"data": random_images()} if TINY else {"data": "cifar10", "partition": "iid", "clients": 10}
plan = fedavg.Plan(
    task=fedavg.Task("cifar", net, prepare=normalised), C=1.0, E=1, B=32, lr=0.1, optimizer="sgd:momentum=0.9",
    rounds=1 if TINY else 3, holdout=0.2, evaluate="server,clients", eval_clients=5, **data,
)  # fmt: skip

if __name__ == "__main__":
    result = fedavg.run(plan)
    for place, round in enumerate(result.rounds):
        on_clients = result.client_metrics["accuracy"][place]
        print(
            f"round {round}: loss {result.loss[place]:.4f}, accuracy {result.accuracy[place]:.4f}, "
            f"{on_clients:.4f} on clients"
        )
