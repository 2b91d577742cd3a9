"""Regression on a table, with a column that says whose row it is.

Each household has a smart meter: temperature, hour and floor area go in, the power drawn comes out. Households differ
in size and habits. A model is judged by its root mean square error and its mean absolute error, in kilowatts.

Run it (needs pandas: pip install 'fedavg[tables]'):
    python examples/tabular_regression.py

It prints both errors before training, after some rounds and at the end, and how they spread over households.
"""

import sys

import numpy as np
import torch.nn.functional as F
from pandas import DataFrame
from torch import nn

import fedavg

TINY = "--tiny" in sys.argv
HOUSEHOLDS = 10 if TINY else 60


def meter_readings() -> DataFrame:
    rng = np.random.default_rng(0)
    rows = HOUSEHOLDS * 80
    household = rng.integers(0, HOUSEHOLDS, rows)
    temperature, hour = rng.normal(10, 8, rows), rng.integers(0, 24, rows)
    area = (60 + 120 * rng.random(HOUSEHOLDS))[household]
    heating = np.maximum(18 - temperature, 0) * area / 1000
    habits = (0.2 + rng.random(HOUSEHOLDS))[household] * (np.cos((hour - 19) / 24 * 2 * np.pi) + 1)
    return DataFrame(
        {
            "household": household,
            "temperature": (temperature - 10) / 8,  # features of about the same size train faster
            "morning": np.sin(hour / 24 * 2 * np.pi),
            "evening": np.cos(hour / 24 * 2 * np.pi),
            "area": (area - 120) / 35,
            "kilowatts": heating + habits + rng.normal(0, 0.1, rows),
        }
    )


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))  # (B, 4) to (B,)


task = fedavg.Task("meters", net, loss=F.mse_loss, metrics=[fedavg.RMSE(), fedavg.MAE()])
data = fedavg.from_table(meter_readings(), client="household", label="kilowatts")
plan = fedavg.Plan(
    task=task, data=data, C=0.2, E=2, B=16, lr=0.05, optimizer="sgd:momentum=0.9",
    rounds=2 if TINY else 40, eval_every=1 if TINY else 10, holdout=0.2, evaluate="server,clients",
)  # fmt: skip

if __name__ == "__main__":
    result = fedavg.run(plan)
    for place, round in enumerate(result.rounds):
        print(f"round {round}: rmse {result.metrics['rmse'][place]:.3f} kW, mae {result.metrics['mae'][place]:.3f} kW")
    tenth, median, ninetieth = (result.client_metrics[f"rmse.{p}"][-1] for p in ("p10", "p50", "p90"))
    print(f"rmse of a household: {median:.3f} kW in the middle, from {tenth:.3f} (p10) to {ninetieth:.3f} (p90)")
