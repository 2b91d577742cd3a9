"""100,000 clients that keep something between rounds: SCAFFOLD beside FedAvg, recorded in a run directory.

A tenth of the clients takes part in each round, so that after 15 rounds four of five have a control variate. Both runs
are repeated in turn; times are medians of the user and system time of all their processes, which a busy machine
changes little, and only their ratios mean something. SCAFFOLD without the store (its control variates are forgotten)
tells what of its time is the algorithm's own.

    python benchmarks/client_states.py [--clients 100000] [--rounds 15] [--repeats 3] [--out docs/results/client_states.json]
"""

import argparse
import json
import os
import resource
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch
from torch import nn

import fedavg
from fedavg import ArrayData, Examples, Plan, Task

EXAMPLES = 20
FEATURES = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data = many_clients(options.clients)
    rows = [row for _ in range(options.repeats) for row in one_turn(data, options.rounds)]
    result = {"clients": options.clients, "rounds": options.rounds, "cohort": options.clients // 10} | summary(rows)
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def many_clients(count: int) -> ArrayData:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((count * EXAMPLES, FEATURES)).astype(np.float32))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    parts = np.split(np.arange(len(x)), count)
    return ArrayData("many", x, y, parts, Examples(x[:1000], y[:1000]))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 3))


def one_turn(data: ArrayData, rounds: int) -> list[dict[str, object]]:
    plan = Plan(task=Task("small", net), data=data, C=0.1, E=1, B=5, lr=0.05, rounds=rounds, eval_every=rounds)  # type: ignore[arg-type]
    return [measured(name, plan) for name in ("fedavg", "scaffold")]


def measured(algorithm: str, plan: Plan) -> dict[str, object]:
    from dataclasses import replace

    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        began, cpu = perf_counter(), cpu_seconds()
        fedavg.run(replace(plan, algorithm=algorithm), run)
        kept = list((run / "clients").glob("*"))
        return {
            "algorithm": algorithm,
            "cpu_s": cpu_seconds() - cpu,
            "wall_s": perf_counter() - began,
            "files": len(kept),
            "mb": sum(path.stat().st_size for path in kept) / 1e6,
        }


def cpu_seconds() -> float:
    """Of this process and of its workers that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    names = ("fedavg", "scaffold")
    by_name = {name: [row for row in rows if row["algorithm"] == name] for name in names}
    middle = {
        name: {key: round(median(row[key] for row in by_name[name]), 2) for key in ("cpu_s", "wall_s", "files", "mb")}
        for name in names
    }  # type: ignore[type-var, call-overload]
    return {
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        **middle,
        "ratio": round(middle["scaffold"]["cpu_s"] / middle["fedavg"]["cpu_s"], 2),
    }


if __name__ == "__main__":
    main()
