"""What a peer's script is given, and how it answers. Needs NumPy alone.

`benchmarks/peers.py` writes a workload to a file: every client's examples, ready for the model, who takes part in each
round, and how clients train. So all frameworks do the same work on the same clients.
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Given:
    model: str
    clients: list[tuple[np.ndarray, np.ndarray]]
    cohorts: list[list[int]]
    batch: int
    epochs: int
    lr: float
    momentum: float


def read(path: str) -> Given:
    with np.load(path) as file:
        held = {name: file[name] for name in file.files}
    how = json.loads(str(held["how"]))
    starts = np.cumsum(held["sizes"])[:-1]
    clients = list(zip(np.split(held["x"], starts), np.split(held["y"], starts), strict=True))
    return Given(clients=clients, cohorts=held["cohorts"].tolist(), **how)


def write(path: Path, sizes: np.ndarray, x: np.ndarray, y: np.ndarray, cohorts: list[list[int]], how: dict) -> None:
    np.savez(path, sizes=sizes, x=x, y=y, cohorts=np.array(cohorts), how=np.array(json.dumps(how)))


class Stopwatch:
    """When rounds end. The whole process is timed from outside, so its start counts too."""

    def __init__(self) -> None:
        self.began = time.time()
        self.ends: list[float] = []

    def round_ends(self) -> None:
        self.ends.append(time.time())

    def answer(self, parameters: int, losses: list[float], version: str) -> None:
        """`parameters` are those that are trained; `losses` the training loss of the first and of the last round."""
        starts = [self.began, *self.ends[:-1]]
        seconds = [end - start for start, end in zip(starts, self.ends, strict=True)]
        answer = {"first_end": self.ends[0], "seconds": seconds, "parameters": parameters}
        print(json.dumps({**answer, "losses": [losses[0], losses[-1]], "version": version}))
        sys.stdout.flush()
