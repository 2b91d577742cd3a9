"""100,000 clients that keep something between rounds: SCAFFOLD beside FedAvg, each recorded in a run directory.

A tenth of the clients takes part in each round, so that after 15 rounds four of five have a control variate. Both runs
are repeated in turn, and times are medians. `cpu_s` is the user and system time of all processes of a run, which a busy
machine changes less than `wall_s`; only ratios are meaningful. `load` is how many processes wanted a core, including
the run's own three. A client has 20 examples and trains for four steps, so that little hides the cost of keeping state.
The record is written after each repetition.

    python benchmarks/client_states.py [--clients 100000] [--rounds 15] [--repeats 3] [--out FILE]
"""

import argparse
import json
import os
import resource
from dataclasses import asdict, dataclass, replace
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


@dataclass(frozen=True)
class Cost:
    """Of a whole run; `files` and `megabytes` are what clients kept at its end."""

    cpu_s: float
    wall_s: float
    files: int
    megabytes: float
    load: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    plan = small_plan(many_clients(options.clients), options.rounds)
    costs: dict[str, list[Cost]] = {"fedavg": [], "scaffold": []}
    for repeat in range(1, options.repeats + 1):
        for algorithm, measured in costs.items():
            measured.append(cost(replace(plan, algorithm=algorithm)))
            print(algorithm, measured[-1], flush=True)
        result = summary(costs) | {"clients": options.clients, "rounds": options.rounds, "repeats": repeat}
        print(json.dumps(result, indent=1), flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")


def many_clients(count: int) -> ArrayData:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((count * EXAMPLES, FEATURES)).astype(np.float32))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    parts = list(np.arange(len(x)).reshape(count, EXAMPLES))
    return ArrayData("many", x, y, parts, Examples(x[:1000], y[:1000]))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 3))


def small_plan(data: ArrayData, rounds: int) -> Plan:
    task = Task("small", net)
    return Plan(task=task, data=data, C=0.1, E=1, B=5, lr=0.05, rounds=rounds, eval_every=rounds)


def cost(plan: Plan) -> Cost:
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        began, cpu = perf_counter(), cpu_seconds()
        fedavg.run(plan, run)
        kept = [path.stat().st_size for path in (run / "clients").glob("*")]
        spent, wall = cpu_seconds() - cpu, perf_counter() - began
        return Cost(spent, wall, len(kept), sum(kept) / 1e6, os.getloadavg()[0])


def cpu_seconds() -> float:
    """CPU seconds of this process and of its workers that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def summary(costs: dict[str, list[Cost]]) -> dict[str, object]:
    middle = {name: medians(measured) for name, measured in costs.items()}
    ratios = {
        f"{what}_ratio": middle["scaffold"][f"{what}_s"] / middle["fedavg"][f"{what}_s"] for what in ("cpu", "wall")
    }
    shown = {name: {key: round(value, 1) for key, value in values.items()} for name, values in middle.items()}
    head: dict[str, object] = {"torch": torch.__version__, "cores": os.cpu_count()}
    return head | shown | {name: round(ratio, 2) for name, ratio in ratios.items()} | {"cpu_ratios": cpu_ratios(costs)}


def medians(measured: list[Cost]) -> dict[str, float]:
    return {key: median(asdict(cost)[key] for cost in measured) for key in asdict(measured[0])}


def cpu_ratios(costs: dict[str, list[Cost]]) -> list[float]:
    """The ratio of each repetition."""
    return [round(b.cpu_s / a.cpu_s, 2) for a, b in zip(costs["fedavg"], costs["scaffold"], strict=True)]


if __name__ == "__main__":
    main()
