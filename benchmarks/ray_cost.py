"""What simulations on Ray cost: compared with the local fleet, and by the number of actors.

    python benchmarks/ray_cost.py beside [--only W1] [--rounds 10] [--repeats 3] [--out FILE]
    python benchmarks/ray_cost.py actors [--counts 2,10,50,200] [--rounds 20] [--out FILE]

`beside`: W1 (2NN, B=10) and W3 (CNN, B=10), ten clients a round, by two workers of the local fleet and by two actors of
a Ray on this machine. Rounds of both alternate, so that a busy machine slows both; medians of the rounds after the
first two are compared. On a busy machine, compare the processor time instead: of the driver in its rounds, of the
workers, and of Ray's own processes, some of which work periodically, whichever fleet is running.

`actors`: actors that answer at once without doing their jobs, so that only the driver's own work is left: its processor
time and calls for a round of ten clients per actor, with weights and sums of the 2NN's size.
"""

import argparse
import json
import os
import pickle
import sys
from contextlib import ExitStack, closing, suppress
from importlib import import_module
from operator import attrgetter, call
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from fedavg import ArrayData, LocalFleet, Plan, RayFleet, Task, train
from fedavg.fleets.ray.rings import RingPlace
from fedavg.fleets.ray.station import Facts, Introduction, StationReport
from fedavg.fleets.worker import Trained, TrainJob
from fedavg.setup import population_of, resolve

WORKLOADS = {"W1": "mnist-2nn", "W3": "mnist-cnn"}
#: Numbers of the 2NN's update.
SIZE = 199_210
CLIENTS_PER_ACTOR = 10
#: Ray's own processes, which are not workers.
OTHERS = "Ray's own"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["beside", "actors"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--counts", default="2,10,50,200")
    parser.add_argument("--only", choices=list(WORKLOADS), help="one workload")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "beside":
        chosen = [options.only] if options.only else list(WORKLOADS)
        found: Any = {name: beside(WORKLOADS[name], options.rounds, options.repeats) for name in chosen}
    else:
        found = [by_actors(int(n), options.rounds) for n in options.counts.split(",")]
    result = {"load": os.getloadavg()[0], "cores": os.cpu_count(), options.what: found}
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def beside(task: str, rounds: int, repeats: int) -> dict[str, Any]:
    """Seconds of a round by each fleet, and how many times as long Ray takes."""
    plan = Plan(task=task, data="mnist", C=0.1, B=10, E=1, workers=2, rounds=2 + rounds * repeats, evaluate="none")
    seconds: dict[str, list[float]] = {"local": [], "ray": []}
    cpu_s = {"local": 0.0, "ray": 0.0, OTHERS: 0.0}
    with ExitStack() as stack:
        fleets = {"local": LocalFleet(), "ray": RayFleet()}
        runs = {name: stack.enter_context(closing(train(plan, fleet))) for name, fleet in fleets.items()}
        for events in runs.values():
            next(events)
        workers = {name: fleet.worker_pids for name, fleet in fleets.items()}
        for number in range(plan.rounds):
            if number == 2:
                before = processor_s(workers)
            for name, events in runs.items():
                began, event = process_time(), next(events)
                if number >= 2:
                    cpu_s[name] += process_time() - began
                    seconds[name].append(event.seconds)
        after = processor_s(workers)
    cpu_ms = {name: 1e3 * (cpu_s[name] + after[name] - before[name]) / (rounds * repeats) for name in cpu_s}
    pairs = [ray / local for local, ray in zip(seconds["local"], seconds["ray"], strict=True)]
    found = {name: median(values) for name, values in seconds.items()}
    parts = np.array_split(np.array(pairs), repeats)
    result = found | {"ratio": found["ray"] / found["local"], "ratio_of_pairs": median(pairs)}
    result["ratios_of_parts"] = [float(np.median(part)) for part in parts]
    result["processor_ms"], result["ratio_of_processor_time"] = cpu_ms, cpu_ms["ray"] / cpu_ms["local"]
    print(task, result, file=sys.stderr, flush=True)
    return result


def processor_s(workers: dict[str, list[int]]) -> dict[str, float]:
    """Processor seconds so far of the workers of each fleet, and of the other processes started here."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, new = set(), {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in new}:
        found |= new
    others = found - {pid for pids in workers.values() for pid in pids}
    return {name: sum(map(_used_s, pids)) for name, pids in (workers | {OTHERS: list(others)}).items()}


def _used_s(pid: int) -> float:
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
    return 0.0


FACTS = Facts("", "", "", "", "", "")


class IdleJob(TrainJob):
    """A job that is sent as just the number of its client."""

    def __reduce__(self) -> Any:
        return int, (self.client,)


class IdlePlace(RingPlace):
    def __reduce__(self) -> Any:
        return int, (self.pid,)


def introduction(pid: int) -> Introduction:
    return Introduction("here", pid, IdlePlace(pid, 0, ""), FACTS)


def report(numbers: list[int]) -> StationReport:
    return StationReport({n: Trained(1.0, {}, 100, 1) for n in numbers}, dict.fromkeys(numbers, 0.001), None, {})


class Here:
    """This module, as found by the process that reads an answer."""

    def __reduce__(self) -> Any:
        return import_module, ("__main__",)


class Function:
    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return attrgetter(self.name), (Here(),)


class Answer:
    """Becomes the result of this module's `name` on the argument when it is read: so an idle actor needs no PyTorch."""

    def __init__(self, name: str, argument: Any) -> None:
        self.name, self.argument = name, argument

    def __reduce__(self) -> Any:
        return call, (Function(self.name), self.argument)


def idle_actor(size: int) -> type:
    """An actor that answers at once."""
    import ray

    class Idle:
        def introduce(self, plan: Any) -> Any:
            return Answer("introduction", os.getpid())

        def do(self, number: int, jobs: bytes, shared: Any = None) -> bytes:
            return pickle.dumps(Answer("report", [place for place, _ in pickle.loads(jobs)]))

        def add_up(self, rings: Any) -> Any:
            return np.ones(size, np.int64)

        @ray.method(concurrency_group="aside")
        def give_back(self, number: int) -> list[int]:
            return []

        @ray.method(concurrency_group="aside")
        def how_far(self) -> tuple[int, float]:
            return -1, 0.0

    return Idle


def by_actors(actors: int, rounds: int) -> dict[str, float]:
    """The driver's seconds and calls for a round."""
    import ray

    from fedavg.fleets.ray import crew as crews
    from fedavg.fleets.ray.pool import ActorPool

    crews.ALL_READY_S = 1e9  # type: ignore[misc]
    clients = CLIENTS_PER_ACTOR * actors
    x, y = torch.zeros(clients, 1), torch.zeros(clients, dtype=torch.int64)
    data = ArrayData("idle", x, y, [np.array([k]) for k in range(clients)], None)
    plan = Plan(task=Task("idle", lambda: torch.nn.Linear(1, 2)), data=data, C=1.0)
    setup = resolve(plan, population_of(data), None)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    ray.init("local", num_cpus=actors, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        began = perf_counter()
        pool = ActorPool(setup, data, None, FACTS, SIZE, None, idle_actor(SIZE))
        start_s, calls = perf_counter() - began, 0
        listen = pool.crew._listen

        def counted(*args: Any) -> None:
            nonlocal calls
            calls += 1
            listen(*args)

        pool.crew._listen = counted  # type: ignore[method-assign]
        weights, wall, cpu = torch.zeros(SIZE), [], []
        for number in range(rounds):
            jobs = [IdleJob(k, plan.work(number + 1), number + 1) for k in range(clients)]
            began, used = perf_counter(), process_time()
            pool.share(weights)
            pool.run(jobs)
            wall.append(perf_counter() - began)
            cpu.append(process_time() - used)
        found = {
            "actors": actors,
            "start_s": start_s,
            "wall_ms": 1e3 * median(wall),
            "driver_cpu_ms": 1e3 * median(cpu),
        }
        found |= {"calls": calls / rounds, "driver_cpu_ms_per_actor": 1e3 * median(cpu) / actors}
        print(found, file=sys.stderr, flush=True)
        pool.close()
        return found
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
