"""The character LSTM on real clients with two lines in a row, beside one padded line in a row.

Each repetition runs both, in turn, on one thread; times are medians, and only their ratios are meaningful: of a local
epoch on five clients, and of an evaluation on their data. Needs the plays in FEDAVG_DATA.

    python benchmarks/packing.py [--repeats 5] [--out docs/results/packing.json]
"""

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedavg import trees
from fedavg.engine.memory import keep_freed_memory
from fedavg.engine.trainer import Trainer
from fedavg.plan import make_plan
from fedavg.setup import resolve_data
from fedavg.tasks.shakespeare import SHAKESPEARE_LSTM
from fedavg.types import Examples
from race import race


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    clients = five_clients()
    padded, packed = (trainer(pack, clients[0]) for pack in (None, SHAKESPEARE_LSTM.collate))
    rows: list[dict[str, object]] = []
    for batch in (10, 50):
        slow, fast = (partial(epoch, trainer, clients, batch) for trainer in (padded, packed))
        times = race(("padded", slow), ("packed", fast), options.repeats)
        rows.append({"what": "training", "batch": batch} | times)
    slow, fast = (partial(evaluate, trainer, clients) for trainer in (padded, packed))
    times = race(("padded", slow), ("packed", fast), options.repeats)
    rows.append({"what": "evaluation", "batch": SHAKESPEARE_LSTM.eval_batch} | times)
    for row in rows:
        print(json.dumps(row))
    if options.out:
        lines = sum(len(examples) for examples in clients)
        head = {"torch": torch.__version__, "engine": packed.engine.name, "lines": lines}
        options.out.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")


def five_clients() -> list[Examples]:
    """Of middling size, evenly spread: the 200th, 260th ... largest of the 1144."""
    data = resolve_data(make_plan({"task": "shakespeare-lstm", "data": "shakespeare", "lr": 1.0, "rounds": 1}))
    by_size = np.argsort(-np.asarray(data.sizes), kind="stable")
    return [data.client(int(k)) for k in by_size[200:500:60]]


def trainer(pack: object, examples: Examples) -> Trainer:
    made = Trainer(replace(SHAKESPEARE_LSTM, collate=pack), seed=0)  # type: ignore[arg-type]
    made.choose_engine("graph", trees.take(examples, slice(3)))
    return made


def epoch(trainer: Trainer, clients: list[Examples], batch: int) -> None:
    for examples in clients:
        steps = trainer.steps(0.0)
        for piece in trainer.pieces(examples, batch, np.random.default_rng(0)):
            trainer.epoch_for(piece, steps)(piece, steps)


def evaluate(trainer: Trainer, clients: list[Examples]) -> None:
    for examples in clients:
        trainer.evaluate(examples)


if __name__ == "__main__":
    main()
