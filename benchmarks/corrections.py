"""Local epochs with corrections and other optimisers, beside FedAvg's: the 2NN at B = 10, one client of 600 examples.

Each repetition runs all of them once, in turn, on one thread. Times are the process's own CPU time, so that a busy
machine matters little; they are medians, and only their ratios to FedAvg's are meaningful. It measures the fast path
unless told otherwise.

    python benchmarks/corrections.py [--repeats 60] [--engine graph] [--out docs/results/corrections.json]
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
import torch

from fedavg.algorithms import make_algorithm
from fedavg.client import Client
from fedavg.engine.memory import keep_freed_memory
from fedavg.engine.threads import one_thread
from fedavg.engine.trainer import Trainer
from fedavg.optimizers import make_optimizer
from fedavg.tasks import TASKS
from fedavg.types import Examples, Work

#: Algorithm, optimiser.
CONTESTS = [
    ("fedavg", "sgd"),
    ("fedprox:0.1", "sgd"),
    ("scaffold", "sgd"),
    ("feddyn:0.1", "sgd"),
    ("fedavg", "sgd:weight_decay=1e-4"),
    ("fedavg", "sgd:momentum=0.9"),
    ("fedavg", "sgd:momentum=0.9:nesterov=true:weight_decay=1e-4"),
    ("fedprox:0.1", "sgd:momentum=0.9"),
    ("fedavg", "sgd:clip_norm=1"),
    ("fedavg", "adam"),
]
WORK = Work(round=1, epochs=1, batch=10, lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--engine", default="graph", choices=["graph", "plain"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    with one_thread():
        rows = measured(options.engine, options.repeats)
    for row in rows:
        print(json.dumps(row))
    if options.out:
        head = {"torch": torch.__version__, "engine": options.engine, "repeats": options.repeats, "time": "CPU"}
        options.out.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")


def measured(engine: str, repeats: int) -> list[dict[str, object]]:
    runs = [epoch(*contest, engine) for contest in CONTESTS]
    times: list[list[float]] = [[] for _ in runs]
    for repeat in range(repeats + 2):
        for run, kept in zip(runs, times, strict=True):
            began = process_time()
            run()
            if repeat > 1:  # the first ones compile
                kept.append(process_time() - began)
    base = median(times[0])
    return [
        {
            "algorithm": algorithm,
            "optimizer": optimizer,
            "ms": round(1000 * median(kept), 3),
            "of_fedavg": round(median(kept) / base, 3),
            "median_of_ratios": round(median(a / b for a, b in zip(kept, times[0], strict=True)), 3),
        }
        for (algorithm, optimizer), kept in zip(CONTESTS, times, strict=True)
    ]


def epoch(algorithm: str, optimizer: str, engine: str) -> Callable[[], object]:
    """The client half of a round: load, one epoch of 60 steps, subtract."""
    rng = np.random.default_rng(0)
    examples = Examples(
        torch.from_numpy(rng.integers(0, 256, (600, 28, 28), np.uint8)), torch.from_numpy(rng.integers(0, 10, 600))
    )
    trainer = Trainer(TASKS["mnist-2nn"], seed=0, optimizer=make_optimizer(optimizer))
    trainer.choose_engine(engine, Examples(examples.x[:10], examples.y[:10]))
    made = make_algorithm(algorithm)
    shared = made.shared(made.initial(trainer.weights.clone()))
    state: dict[str, torch.Tensor] = {}
    return lambda: made.client_update(Client(0, examples, trainer, 0, 1, state), shared, WORK)


if __name__ == "__main__":
    main()
