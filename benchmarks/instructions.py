"""Which instructions of a workload's native step take the time.

Each instruction of the step on a full batch runs alone, many times in one call, on what a whole step left in memory;
the shortest of several CPU times counts. In a whole step an instruction finds other data in the cache, so the sum only
approximates the whole.

    python benchmarks/instructions.py [--workload W5] [--repeats 7] [--out docs/results/instructions.json]
"""

import argparse
import ctypes
import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import torch

from fedavg import native, trees
from fedavg.bench.workloads import plan_of
from fedavg.engine import native_epoch
from fedavg.engine.threads import one_thread
from fedavg.engine.writer import INSTRUCTIONS
from fedavg.setup import simulation

#: The approximate duration of a measurement.
LONG_S = 0.003


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="W5")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with one_thread():
        times, whole = measured(options.workload, options.repeats)
    rows = {name: round(1e6 * s, 1) for name, s in sorted(times.items(), key=lambda item: -item[1])}
    row = {"workload": options.workload, "whole_us": round(1e6 * whole, 1), "sum_us": round(sum(rows.values()), 1)}
    record = {"torch": torch.__version__, "kernels": native.marked("native"), **row, "instructions_us": rows}
    print(json.dumps(record, indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


class Watched:
    """The library of kernels; it passes the arguments of an epoch's call to `look` before it runs."""

    def __init__(self, library: Any, look: Callable[[Any, tuple[Any, ...]], None]) -> None:
        self._library, self._look = library, look

    def epoch(self, *arguments: Any) -> Any:
        self._look(self._library, arguments)
        return self._library.epoch(*arguments)


def measured(workload: str, repeats: int) -> tuple[dict[str, float], float]:
    """Seconds of each kind of instruction in a step, and of the whole step."""
    plan = plan_of(workload, rounds=1, workers=1)
    setup, data = simulation(plan)
    examples = data.client(int(data.sizes.argmax()))
    batch = int(min(plan.work(1).batch, len(examples)))
    trainer = setup.new_trainer(examples)
    times: dict[str, float] = defaultdict(float)

    def look(library: Any, arguments: tuple[Any, ...]) -> None:
        run = partial(seconds, library, arguments)
        code = np.array((ctypes.c_int64 * arguments[1].value).from_address(arguments[0].value))
        run(code, 2)
        times["whole"] = shortest(run, code, repeats)
        for name, words in instructions(code):
            times[name] += shortest(run, words, repeats)

    library = native_epoch.built()
    assert library, "native steps need kernels in C"
    native_epoch.built = lambda: Watched(library, look)  # type: ignore[assignment,return-value]
    steps = trainer.steps(0.0)
    (piece,) = trainer.pieces(trees.take(examples, slice(0, batch)), batch, np.random.default_rng(0))
    trainer.epoch_for(piece, steps)(piece, steps)
    return times, times.pop("whole")


def seconds(library: Any, arguments: tuple[Any, ...], words: np.ndarray, count: int) -> float:
    """Seconds of some instructions, `count` times on the first batch."""
    _, _, arrays, scalars, _, inputs, _, *loss = arguments
    moves = np.zeros(inputs.value, np.int64)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (words, moves)]
    began = thread_time()
    counted = ctypes.c_int(count)
    assert not library.epoch(
        pointers[0], ctypes.c_long(len(words)), arrays, scalars, counted, inputs, pointers[1], *loss
    )
    return (thread_time() - began) / count


def instructions(code: np.ndarray) -> list[tuple[str, np.ndarray]]:
    found, at = [], 0
    while at < len(code):
        end = at + 2 + int(code[at + 1])
        found.append((INSTRUCTIONS[code[at]], np.ascontiguousarray(code[at:end])))
        at = end
    return found


def shortest(run: Any, words: np.ndarray, repeats: int) -> float:
    """Seconds."""
    count = max(1, round(LONG_S / max(run(words, 3), 1e-7)))
    return min(run(words, count) for _ in range(repeats))


if __name__ == "__main__":
    main()
