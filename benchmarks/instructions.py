"""Which instructions of a workload's native step take the time.

Each instruction of the step on a full batch runs alone, many times in one call, on what a whole step left in memory;
the least of some measurements by CPU time counts. What an instruction finds in the cache in a whole step is not the
same, so the sum is only near to the whole.

    python benchmarks/instructions.py [--workload W5] [--repeats 7] [--out docs/results/instructions.json]
"""

import argparse
import ctypes
import json
from collections import defaultdict
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

#: A measurement takes about so long.
LONG_S = 0.003


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="W5")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with one_thread():
        code, run = step(options.workload)
        times: dict[str, float] = defaultdict(float)
        for name, words in instructions(code):
            times[name] += shortest(run, words, options.repeats)
        whole = shortest(run, code, options.repeats)
    rows = {name: round(1e6 * s, 1) for name, s in sorted(times.items(), key=lambda item: -item[1])}
    row = {"workload": options.workload, "whole_us": round(1e6 * whole, 1), "sum_us": round(sum(rows.values()), 1)}
    record = {"torch": torch.__version__, "kernels": native.marked("native"), **row, "instructions_us": rows}
    print(json.dumps(record, indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


def step(workload: str) -> tuple[np.ndarray, Any]:
    """The words of a step's program, and what runs some of them so many times, with a rate of 0."""
    plan = plan_of(workload, rounds=1, workers=1)
    setup, data = simulation(plan)
    examples = data.client(int(data.sizes.argmax()))
    batch = int(min(plan.work(1).batch, len(examples)))
    calls: list[Any] = []
    native_epoch.NativeEpoch.__call__ = watched(native_epoch.NativeEpoch.__call__, calls)  # type: ignore[method-assign]
    trainer = setup.new_trainer(examples)
    trainer.epoch(trees.take(examples, slice(0, batch)), batch, trainer.steps(0.0), np.random.default_rng(0))
    epoch, tensors, length, _, flat, targets = calls[-1]
    program, layouts = epoch.prepare(length)
    inputs = [native_epoch._laid_out(leaf, layout, length) for leaf, layout in zip(tensors, layouts, strict=True)]
    places = [native_epoch._addresses(some) for some in (inputs, [*targets, *flat])]
    arena = epoch._arena.start(program.arena_bytes)
    arrays = np.array([*places[0], *epoch._kept_at, *places[1], arena], np.int64)
    scalars = np.array([0.0, 1.0, *[0.0] * 6, *program.constants], np.float32)
    moves, library, total = np.zeros(len(inputs), np.int64), native_epoch.built(), ctypes.c_double(0.0)

    def run(words: np.ndarray, count: int) -> float:
        began = thread_time()
        failed = library.epoch(
            native_epoch._pointer(words), ctypes.c_long(len(words)), native_epoch._pointer(arrays),
            native_epoch._pointer(scalars), ctypes.c_int(count), ctypes.c_int(len(inputs)),
            native_epoch._pointer(moves), ctypes.c_long(program.loss[0]), ctypes.c_long(program.loss[1]),
            ctypes.byref(total),
        )  # fmt: skip
        assert not failed
        return (thread_time() - began) / count

    code = program.code.numpy()
    run(code, 2)
    return code, run


def watched(call: Any, calls: list[Any]) -> Any:
    def watching(*arguments: Any) -> Any:
        calls.append(arguments)
        return call(*arguments)

    return watching


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
