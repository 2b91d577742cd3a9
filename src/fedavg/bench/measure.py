"""Times a workload and its floor in fresh processes, in turns, and watches the memory of the process tree."""

import json
import subprocess
import sys
import time
from dataclasses import asdict, astuple, dataclass
from statistics import fmean, median
from typing import Any, Final

from fedavg.bench.process_tree import TreeMemory
from fedavg.errors import FedAvgError

#: The first rounds are cold: they fill caches, and meet shapes for the first time. Those after them are warm.
COLD: Final = 6


@dataclass(frozen=True)
class Pace:
    """How long rounds take: warm ones, the first `COLD` ones on average, and from the start to the end of the first."""

    s_per_round: float
    cold_s_per_round: float
    #: On all cores together, warm.
    cpu_s_per_round: float
    startup_s: float


@dataclass(frozen=True)
class Measurement:
    """Medians over `repeats` turns; ratios are taken within a turn. `plain` is PyTorch without us (`reference.py`).

    Memory is the peak of the sum over all processes: of what each has resident (`rss`, shared pages counted in each),
    and of each one's share of it (`pss`).
    """

    workload: str
    workers: int
    s_per_round: float
    cold_s_per_round: float
    cpu_s_per_round: float
    startup_s: float
    floor_s_per_round: float
    ratio_to_floor: float
    plain: Pace
    #: How many times plain PyTorch takes as long.
    plain_ratio: float
    plain_cold_ratio: float
    plain_cpu_ratio: float
    peak_rss_mb: float
    peak_pss_mb: float
    rounds: int
    repeats: int


def measure(workload: str, rounds: int, workers: int, repeats: int) -> Measurement:
    floors, ours, plain, rss, pss = [], [], [], [], []
    for _ in range(repeats):
        floors.append(float(_child("floor", workload, rounds, workers)[0]["seconds"]))
        answer, began, memory = _child("run", workload, rounds, workers)
        ours.append(_pace(answer, began))
        plain.append(_pace(*_child("plain", workload, rounds, workers)[:2]))
        rss.append(memory.rss)
        pss.append(memory.pss)
    warm = [pace.s_per_round for pace in ours]
    return Measurement(
        workload=workload,
        workers=workers,
        **asdict(_middle(ours)),
        floor_s_per_round=median(floors),
        ratio_to_floor=_ratio(warm, floors),
        plain=_middle(plain),
        plain_ratio=_ratio([pace.s_per_round for pace in plain], warm),
        plain_cold_ratio=_ratio([p.cold_s_per_round for p in plain], [p.cold_s_per_round for p in ours]),
        plain_cpu_ratio=_ratio([p.cpu_s_per_round for p in plain], [p.cpu_s_per_round for p in ours]),
        peak_rss_mb=max(rss),
        peak_pss_mb=max(pss),
        rounds=rounds,
        repeats=repeats,
    )


def _pace(answer: dict[str, Any], began: float) -> Pace:
    seconds, cpu = answer["seconds"], answer["cpu_seconds"]
    cold = min(COLD, len(seconds) - 2)
    on_cores = fmean(cpu[cold:-1])  # ours evaluates in the last round
    return Pace(median(seconds[cold:]), fmean(seconds[:cold]), on_cores, answer["first_end"] - began)


def _middle(paces: list[Pace]) -> Pace:
    return Pace(*(median(values) for values in zip(*map(astuple, paces), strict=True)))


def _ratio(above: list[float], below: list[float]) -> float:
    """The median of the turns' ratios; 0 where the system does not tell the time on a core."""
    return median(a / b if b else 0.0 for a, b in zip(above, below, strict=True))


def _child(what: str, workload: str, rounds: int, workers: int) -> tuple[dict[str, Any], float, TreeMemory]:
    command = [sys.executable, "-m", "fedavg.bench.child", what, workload, str(rounds), str(workers)]
    began = time.time()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        memory = TreeMemory(process.pid)
        memory.start()
        output, _ = process.communicate()
        memory.stop()
    if process.returncode:
        raise FedAvgError(f"the measurement '{' '.join(command[1:])}' failed with exit code {process.returncode}")
    return json.loads(output), began, memory
