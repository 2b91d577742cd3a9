"""What a simulated world costs. The clock alone: a million clients over a simulated day, 1,000 reports a round, no
training; each world in its own process, so that its memory is measured alone. With training: W1 (2NN, B=10) and W3
(CNN) in a world of "always there, all alike" beside the same plan without a world, in turns; `ratio` is CPU time of all
processes, the median over repetitions of each pair's ratio.

    python benchmarks/world.py [--clients 1000000] [--repeats 5] [--training] [--out FILE]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

WORLDS = {
    "diurnal": "diurnal:24:devices=lognormal:dropout=0.05",
    "markov": "markov:1.0:3.0:lognormal:dropout=0.05",
    "always": "always:lognormal:dropout=0.05",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=WORLDS, help="measure one world's clock in this process, and stop")
    parser.add_argument("--training", action="store_true", help="only what a world costs beside training")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.clock:
        print(json.dumps(clock(WORLDS[options.clock], options.clients)))
        return
    found: dict[str, object] = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "clients": options.clients}
    for name in () if options.training else WORLDS:
        command = [sys.executable, __file__, "--clock", name, "--clients", str(options.clients)]
        found[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(name, found[name], flush=True)
    for name in ("W1", "W3"):
        found[name] = training(name, options.repeats)
        print(name, found[name], flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def clock(world: str, clients: int) -> dict[str, float]:
    """Seconds and megabytes of a simulated day."""
    from fedavg.study.clockwork import Scene, ticks
    from fedavg.world.presence import DAY_S

    began, cpu = perf_counter(), process_time()
    scene = Scene(world, "deadline:300:1.3", clients=clients, wanted=1000)
    rounds = reports = 0
    for tick in ticks(scene, DAY_S):
        rounds, reports = rounds + 1, reports + tick.row.reported
    return {
        "rounds": rounds,
        "reports": reports,
        "cpu_s": round(process_time() - cpu, 1),
        "wall_s": round(perf_counter() - began, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def training(name: str, repeats: int) -> dict[str, object]:
    """CPU time in a world over CPU time without one."""
    from fedavg import Plan

    plans = {
        "W1": Plan(task="mnist-2nn", C=0.1, E=1, B=10, lr=0.1, rounds=8, eval_every=8, workers=2),
        "W3": Plan(task="mnist-cnn", C=0.1, E=1, B=10, lr=0.1, rounds=3, eval_every=3, workers=2),
    }
    plan = plans[name]
    ratios, models = [], set()
    cpu_of(plan)  # warm-up: one-time imports and compilation do not count
    for repeat in range(repeats):
        costs: dict[str | None, float] = {}
        for world in (None, "always")[:: 1 if repeat % 2 else -1]:  # alternate the order within a pair too
            costs[world], model = cpu_of(replace(plan, world=world))
            models.add(model)
        ratios.append(costs["always"] / costs[None])
    assert len(models) == 1, "the same bits"
    return {"ratio": round(median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios]}


def cpu_of(plan: object) -> tuple[float, str]:
    import fedavg

    before = cpu_seconds()
    result = fedavg.run(plan)  # type: ignore[arg-type]
    return cpu_seconds() - before, result.summary.model_sha256


def cpu_seconds() -> float:
    """CPU seconds of this process and of its workers that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


if __name__ == "__main__":
    main()
