"""Frozen weights are in memory once per machine: the total memory of all processes of a run, by their number.

python benchmarks/frozen_memory.py docs/results/frozen_memory.json

Each run has 4 MB or 400 MB of frozen weights; the difference between the two, over 396 MB, is the number of copies.
"""

import gc
import json
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedavg
from fedavg.engine.memory import trim
from fedavg.usage import share_of


class Wide(nn.Module):
    """Frozen weights beside a small layer."""

    def __init__(self, mb: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(mb * 250, 1000), requires_grad=False)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x * self.table[0, 0])


def total_mb(mb: int, workers: int, method: str) -> float:
    """PSS of the server and its workers in the last round."""
    gc.collect()  # garbage of the previous run: its module is in cycles
    trim()
    rng = np.random.default_rng(0)
    data = fedavg.from_arrays(rng.normal(size=(80, 8)).astype("f4"), rng.integers(0, 3, 80), "iid", clients=8)
    fleet, found = fedavg.LocalFleet(), []

    def watch(event: fedavg.Event) -> None:
        if isinstance(event, fedavg.Round):
            found.append(share_of([os.getpid(), *fleet.worker_pids]).total)

    task = fedavg.Task("wide", partial(Wide, mb))
    plan = fedavg.Plan(task=task, data=data, C=1.0, rounds=2, workers=workers, start_method=method)
    fedavg.run(plan, fleet=fleet, watch=watch)
    return found[-1]


if __name__ == "__main__":
    rows = []
    for method, workers in (("fork", 1), ("fork", 2), ("fork", 4), ("spawn", 1), ("spawn", 4)):
        little, much = (total_mb(mb, workers, method) for mb in (4, 400))
        row = {"start": method, "workers": workers, "mb_4": round(little), "mb_400": round(much)}
        rows.append(row | {"copies": round((much - little) / 396, 2)})
        print(rows[-1], flush=True)
    if len(sys.argv) > 1:
        record = {"command": "python benchmarks/frozen_memory.py docs/results/frozen_memory.json", "runs": rows}
        Path(sys.argv[1]).write_text(json.dumps(record, indent=2) + "\n")
