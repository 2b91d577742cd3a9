"""A study: how much does it matter that clients differ, and which algorithm copes best?

MNIST is dealt to 100 clients in three ways, from IID to two digits each, and trained by three algorithms with two
seeds: 18 runs, side by side on all cores. Each run is a directory under sweeps/non_iid; a second call repeats
nothing, and a stopped call continues.

Run it:
    python examples/non_iid.py
    fedavg page sweeps/non_iid          # the curves, in the browser

It prints a table with the mean accuracy over the seeds.
"""

import sys
from pathlib import Path
from tempfile import mkdtemp

import fedavg

TINY = "--tiny" in sys.argv
PARTITIONS = ["iid", "dirichlet:0.3", "shards:2"]
ALGORITHMS = ["fedavg", "fedprox:0.1", "scaffold"]

if __name__ == "__main__":
    plan = fedavg.Plan(
        task="mnist-2nn",
        data="mnist",
        C=0.01 if TINY else 0.1,
        E=5,
        B=20,
        lr=0.05,
        rounds=1 if TINY else 20,
        eval_every=20,
    )
    grid = {"partition": PARTITIONS[-1:] if TINY else PARTITIONS, "algorithm": ALGORITHMS[:2] if TINY else ALGORITHMS}
    folder = Path(mkdtemp()) if TINY else Path("sweeps/non_iid")
    found = fedavg.sweep(plan, grid, seeds=1 if TINY else 2, directory=folder, jobs=1 if TINY else None)
    accuracy = {tuple(entry.settings.values()): entry.final.mean for entry in found.entries}

    print(f"{'partition':<16}" + "".join(f"{name:>14}" for name in grid["algorithm"]))
    for partition in grid["partition"]:
        row = "".join(f"{accuracy[partition, name]:>14.3f}" for name in grid["algorithm"])
        print(f"{partition:<16}{row}")
