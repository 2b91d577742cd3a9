"""The memory of a run: W1 by its process tree for each number of workers and way to start them, and long runs.

The measure is the tree's share (PSS) as it would be if nothing else ran: anonymous and shared memory by the shares of
the processes, and each mapped file (PyTorch's libraries) once, as resident in the process that has most of it. So other
Python processes on the machine, which share those pages, do not make the figure smaller. The peak is sampled through
the whole run, from its start. With growing numbers of clients of 1 to 5 examples, of which 1,000 train in each of five
rounds, it should stay the same: all of their examples come from the same 60,000. A long run is a tiny model in many
rounds, as events and recorded in a run directory; its memory is read after a tenth of the rounds and at the end.

    python benchmarks/memory.py [--rounds 5000] [--out docs/results/memory.json]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedavg.usage import MemoryShare, share_of

LOOK_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    trees = []
    for method, workers in (("fork", 1), ("fork", 2), ("fork", 3), ("fork", 4), ("spawn", 2), ("forkserver", 2)):
        trees.append(
            {"workload": "W1", "start_method": method, "workers": workers} | of_workload("W1", method, workers)
        )
        print(json.dumps(trees[-1]), flush=True)
    crowds = [{"clients": clients} | of_script(CROWD, str(clients)) for clients in (1_000, 10_000, 100_000, 1_000_000)]
    print(json.dumps(crowds), flush=True)
    long = [grown(options.rounds, recorded=recorded) for recorded in (False, True)]
    print(json.dumps(long), flush=True)
    if options.out:
        record = {"unit": "MB (10^6 bytes)", "process_trees": trees, "clients": crowds, "long_runs": long}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


def used(pid: int) -> MemoryShare:
    """The memory of a process and all its descendants."""
    return share_of(tree(pid)) or MemoryShare(0.0, 0.0, 0.0)


def tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(below for child in children for below in tree(int(child)))]


TRAINS = """
import sys
from dataclasses import replace
from fedavg.bench.workloads import plan_of
from fedavg.server import train

if __name__ == "__main__":
    for event in train(replace(plan_of(sys.argv[1], 12, int(sys.argv[3])), start_method=sys.argv[2])):
        if event.round == 10:
            print("warm", flush=True)
            sys.stdin.readline()
"""


CROWD = """
import sys
from dataclasses import replace
import numpy as np
from fedavg import Examples, FederatedData, trees
from fedavg.bench.workloads import mnist
from fedavg.data.location import data_directory
from fedavg.data.mnist import read
from fedavg.server import train

class Crowd(FederatedData):
    name, fingerprint = "crowd", "crowd"

    def __init__(self, clients):
        self._train, test = read(data_directory(None))
        self._test = trees.take(test, slice(50))
        self._sizes = np.random.default_rng(7).integers(1, 6, clients)
        self._starts = self._sizes.cumsum() % (len(self._train) - 5)

    sizes = property(lambda self: self._sizes)
    test = property(lambda self: self._test)

    def client(self, k):
        return trees.take(self._train, slice(int(self._starts[k]), int(self._starts[k] + self._sizes[k])))

if __name__ == "__main__":
    clients = int(sys.argv[1])
    plan = replace(mnist("mnist-2nn", 10), data=Crowd(clients), C=1000 / clients, rounds=6, eval_every=6, workers=2)
    for event in train(plan):
        if event.round == 5:
            print("warm", flush=True)
            sys.stdin.readline()
"""


def of_workload(workload: str, method: str, workers: int) -> dict[str, float]:
    """The peak while it starts and trains, and the memory after ten rounds."""
    return of_script(TRAINS, workload, method, str(workers))


def of_script(text: str, *arguments: str) -> dict[str, float]:
    """The peak of a run until it reports that it is warm, and its memory then."""
    with TemporaryDirectory() as folder:
        script = Path(folder) / "trains.py"
        script.write_text(text)
        command = [sys.executable, str(script), *arguments]
        peak = 0.0
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout
            os.set_blocking(process.stdout.fileno(), False)
            while process.poll() is None and not process.stdout.read():
                peak = max(peak, used(process.pid).total)
                time.sleep(LOOK_S)
            warm = used(process.pid)
            process.communicate(b"\n")
        assert process.returncode == 0
    whole = {"own_mb": warm.own, "shared_mb": warm.shared, "files_mb": warm.files}
    found = {"peak_mb": max(peak, warm.total), "warm_mb": warm.total} | whole
    return {name: round(value, 1) for name, value in found.items()}


LONG = """
import json, os, sys
from pathlib import Path
import torch
from fedavg import ArrayData, LocalFleet, Plan, Task, run, train
from fedavg.usage import share_of

def net():
    width = int(sys.argv[3])
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))

if __name__ == "__main__":
    rounds = int(sys.argv[1])
    x, y = torch.randn(60, 8), torch.arange(60) % 3
    data = ArrayData("tiny", x, y, [range(k, 60, 6) for k in range(6)], (x[:12], y[:12]))
    plan = Plan(task=Task("tiny", net), data=data, C=0.5, rounds=rounds, algorithm="scaffold", workers=2)
    fleet, shares = LocalFleet(), {}

    def watch(event):
        if event.round in (rounds // 10, rounds):
            pids = [os.getpid(), *fleet.worker_pids]
            shares[event.round] = [round(share_of([pid]).own, 1) for pid in pids]

    if sys.argv[4] == "recorded":
        run(plan, Path(sys.argv[2]) / "run", watch, fleet)
    else:
        for event in train(plan, fleet):
            watch(event)
    print(json.dumps(shares))
"""


def grown(rounds: int, *, recorded: bool, width: int = 16) -> dict[str, Any]:
    """Private memory of the server and of both workers after a tenth of the rounds, and at the end.

    The model has 12 numbers for each unit of its width. A recorded run keeps its rows, for its result.
    """
    with TemporaryDirectory() as folder:
        script = Path(folder) / "long.py"
        script.write_text(LONG)
        command = [sys.executable, str(script), str(rounds), folder, str(width), "recorded" if recorded else "not"]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    early, late = json.loads(answer).values()
    growth = [round(after - before, 1) for before, after in zip(early, late, strict=True)]
    return {"rounds": rounds, "recorded": recorded, "early_mb": early, "late_mb": late, "growth_mb": growth}


if __name__ == "__main__":
    main()
