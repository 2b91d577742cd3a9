"""Your own model and data in 30 lines.

Ten hospitals each hold measurements that never leave them. Together they train a small network, which comes back as
an ordinary `nn.Module`.

Run it:
    python examples/own_model.py

It prints the test accuracy after every fifth round, and what the trained module says of a new case.
"""

import sys

import numpy as np
import torch
from torch import nn

import fedavg

rng = np.random.default_rng(0)
x = rng.normal(size=(3000, 8)).astype(np.float32)
y = (x @ rng.normal(size=(8, 3))).argmax(1)  # three classes
hospitals = [(x[k::10], y[k::10]) for k in range(10)]  # in real life: each from its own place


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))


task = fedavg.Task("diagnosis", net)  # the loss is cross entropy unless you say otherwise
data = fedavg.from_clients(hospitals)  # the last fifth of each hospital's cases becomes the test set
plan = fedavg.Plan(task=task, data=data, C=0.5, E=2, B=16, lr=0.1, rounds=2 if "--tiny" in sys.argv else 20)

if __name__ == "__main__":
    result = fedavg.run(plan)
    for round, accuracy in zip(result.rounds, result.accuracy, strict=True):
        if round % 5 == 0 or round == plan.rounds:
            print(f"round {round}: accuracy {accuracy:.3f}")
    print("a new case is of class", int(result.model(torch.zeros(1, 8)).argmax()))
