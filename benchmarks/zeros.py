"""The CPU time of a step of the 2NN on 600 examples with only a part of the numbers non-zero, beside all non-zero.

Both run in one process on one thread, in turns; medians of ratios within a turn.

    python benchmarks/zeros.py [--repeats 9] [--out docs/results/zeros.json]
"""

import argparse
import json
from pathlib import Path

import torch

from fedavg.engine.memory import keep_freed_memory
from fedavg.engine.threads import one_thread
from fedavg.engine.trainer import Trainer
from fedavg.tasks import TASKS
from fedavg.types import Examples
from steps import Run, ratio, repetitions, seconds

EXAMPLES, PIXELS = 600, 784
#: The parts that are not zero.
DENSITIES = (0.05, 0.1, 0.19, 0.25, 0.29, 0.35, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    rows = []
    with one_thread():
        for density in DENSITIES:
            times = raced({"with_zeros": step(density), "without": step(1.0)}, options.repeats)
            rows.append({"density": density, "with_over_without": ratio(times["with_zeros"], times["without"])})
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        head = {"torch": torch.__version__, "repeats": options.repeats, "time": "CPU"}
        options.out.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")


def step(density: float) -> Run:
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(EXAMPLES, PIXELS, generator=draw) + 0.01
    x[torch.rand(EXAMPLES, PIXELS, generator=draw) > density] = 0
    examples = Examples(x, torch.randint(0, 10, (EXAMPLES,), generator=draw))
    trainer = Trainer(TASKS["mnist-2nn"], 0)
    trainer.choose_engine("graph", examples)
    steps = trainer.steps(1e-6)
    (piece,) = trainer.pieces(examples, EXAMPLES, None)
    epoch = trainer.epoch_for(piece, steps)
    return lambda: epoch(piece, steps)


def raced(runs: dict[str, Run], repeats: int) -> dict[str, list[float]]:
    """The seconds of each, turn by turn."""
    counts = {name: repetitions(run) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(seconds(run, counts[name]))
    return times


if __name__ == "__main__":
    main()
