"""Seconds on one core, and memory beyond the updates, for each reducer on a cohort of the MNIST CNN's updates.

    python benchmarks/reducers.py [--clients 100] [--size 1663370] [--json docs/results/robust_speed.json]

Times are CPU times, so that other work on the machine matters little. Memory is the growth of the peak resident memory
while a rule runs, over the bytes of the updates; each rule runs in its own process, forked once the updates are there.
"""

import argparse
import json
import os
import resource
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from fedavg.robust import Rows, make_defence

RULES = [
    ("mean", []), ("median", []), ("trimmed:0.2", []), ("meamed:0.2", []), ("geomedian", []), ("krum:0.2", []),
    ("multikrum:0.2", []), ("centred:10", []), ("mda:0.2", []), ("normbound:5", []), ("dnc:0.2", []),
    ("trimmed:0.2", ["clip:5", "nnm:0.2"]), ("geomedian", ["clip:5", "nnm:0.2"]), ("median", ["bucket:2"]),
    ("mean", ["arc:0.2"]),
]  # fmt: skip


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(pipe: Connection, updates: list[np.ndarray], reducer: str, pre: list[str]) -> None:
    rng = np.random.default_rng(0)
    for update in updates:  # inherited pages are not resident until they are read
        update.sum()
    before, began = peak_bytes(), process_time()
    make_defence(reducer, pre).reduce(Rows.of(updates), rng)
    pipe.send((process_time() - began, peak_bytes() - before))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--size", type=int, default=1_663_370)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    common = rng.standard_normal(options.size, dtype=np.float32)
    updates = [common + rng.standard_normal(options.size, dtype=np.float32) for _ in range(options.clients)]
    held = sum(update.nbytes for update in updates)
    rows = []
    for reducer, pre in RULES:
        ours, theirs = get_context("fork").Pipe()
        process = get_context("fork").Process(target=measure, args=(theirs, updates, reducer, pre))
        process.start()
        seconds, extra = ours.recv()
        process.join()
        row = {
            "reducer": reducer,
            "pre": pre,
            "cpu_s": round(seconds, 2),
            "memory_beyond_updates": round(extra / held, 3),
        }
        print(f"{reducer:16} {' '.join(pre):16} {seconds:6.2f} s   {extra / held:+.1%} memory", flush=True)
        rows.append(row)
    if options.json:
        record = {"clients": options.clients, "numbers": options.size, "cores": 1, "rules": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
