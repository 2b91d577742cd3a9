"""The rates of this machine's cores and processes, measured once and cached: an estimate needs them besides the plan.

They are measured in a separate process, `python -m fedavg.study.rates`, by small runs that take a few seconds. The
user's cache stores them by processor, number of cores and versions.
"""

import json
import os
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from fedavg import machine, native
from fedavg.data import ArrayData
from fedavg.engine.threads import one_thread
from fedavg.errors import DiskError, FedAvgError
from fedavg.files import user_cache, write_atomically
from fedavg.fleets import LocalFleet
from fedavg.fleets.start import Method
from fedavg.native.kernels import instructions
from fedavg.plan import Plan
from fedavg.plan.identity import digest
from fedavg.setup import resolve
from fedavg.tasks import Task
from fedavg.types import Cohort, Part
from fedavg.usage import own_mb, share_of

#: The version of the numbers' meaning.
FORMAT: Final = 2
#: Seconds for which a core is measured.
BUSY_S: Final = 0.6
CLIENTS: Final = 200
TIMEOUT_S: Final = 600


@dataclass(frozen=True)
class MeasuredRates:
    """`crowding`: how many times as long a step takes when all cores are busy. `message_s`: what a client costs besides
    its training, on each side of the pipe. Memory in MB: of the server, of each worker, and of a process that
    has only imported the package; 0 if the system does not say."""

    crowding: float
    message_s: float
    server_mb: float
    worker_mb: float
    imported_mb: float


def rates_of_machine(method: Method) -> MeasuredRates:
    """The rates for workers that start by `method`: cached for this machine, or measured now."""
    with suppress(OSError, DiskError, ValueError, TypeError):  # missing or damaged
        return MeasuredRates(**json.loads(_place(method).read_bytes()))
    rates = _measured_apart(method)
    with suppress(OSError, DiskError):  # without a writable cache they are measured each time
        _place(method).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(_place(method), json.dumps(asdict(rates), indent=1).encode(), durable=False)
    return rates


def _place(method: Method) -> Path:
    level = native.in_use()
    versions = [torch.__version__, version("fedavg"), sys.version]
    measured_on = [list(instructions()), machine.cores(), level.name if level else "", versions]
    return user_cache() / "rates" / f"{digest([FORMAT, method, *measured_on])}.json"


def _measured_apart(method: Method) -> MeasuredRates:
    """Measure in a new process: this one may hold a user's data, or have threads."""
    command = [sys.executable, "-m", "fedavg.study.rates", method]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
        return MeasuredRates(**json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
        raise FedAvgError(f"this machine's rates cannot be measured: {''.join(said)}; try 'fedavg doctor'") from None


def measured(method: str) -> MeasuredRates:
    imported_mb = own_mb()
    alone, together = (_step_s(count, method) for count in (1, machine.cores()))
    message_s, memory = _small_run(1, method)
    more = _small_run(2, method)[1]
    worker_mb = max(more - memory, 0.0)
    return MeasuredRates(max(together / alone, 1.0), message_s, max(memory - worker_mb, 0.0), worker_mb, imported_mb)


def _step_s(processes: int, method: str) -> float:
    """CPU time of a step while this many processes take steps."""
    context: Any = get_context(method)
    together, results = context.Barrier(processes), context.SimpleQueue()
    started = [context.Process(target=_take_steps, args=(together, results)) for _ in range(processes)]
    for process in started:
        process.start()
    seconds: list[float] = [results.get() for _ in started]
    for process in started:
        process.join()
    return median(seconds)


def _take_steps(together: Any, results: Any) -> None:
    """Like training: small products, and a pass over more numbers than a core's own cache holds."""
    with one_thread():
        x, w, numbers = torch.rand(10, 784), torch.rand(784, 200), torch.rand(1 << 19)
        together.wait()
        began, cpu, steps = perf_counter(), process_time(), 0
        while perf_counter() - began < BUSY_S:
            for _ in range(20):
                torch.mm(x.t(), F.relu(torch.mm(x, w)))
            numbers.mul_(1.0)
            steps += 1
    results.put((process_time() - cpu) / steps)


def net() -> nn.Module:
    return nn.Linear(4, 2)


def _small_run(workers: int, method: str) -> tuple[float, float]:
    """What a message costs the server, and the memory of all processes together."""
    x = torch.arange(4.0 * CLIENTS).reshape(CLIENTS, 4).sin()
    data = ArrayData("tiny", x, torch.arange(CLIENTS) % 2, [[k] for k in range(CLIENTS)], None)
    plan = Plan(task=Task("tiny", net), data=data, C=1, workers=workers, start_method=method)
    costs = []
    with closing(LocalFleet()) as fleet:
        weights = fleet.start(resolve(plan, fleet.open(plan), fleet.test))
        everybody = list(range(CLIENTS))
        for round in range(1, 6):
            cpu = process_time()
            fleet.train(Cohort(everybody, CLIENTS), plan.work(round), [Part(everybody, weights)])
            costs.append((process_time() - cpu) / CLIENTS)
        share = share_of([os.getpid(), *fleet.worker_pids])
    return median(costs), share.total if share else 0.0


if __name__ == "__main__":
    print(json.dumps(asdict(measured(sys.argv[1]))))
