"""Times a workload and its floor in fresh processes, in turns, and watches the memory of the process tree."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from statistics import fmean, median
from typing import Any, Final

from fedavg.bench.process_tree import TreeMemory
from fedavg.errors import FedAvgError

#: The first rounds are cold: they fill caches, and meet shapes for the first time. Those after them are warm.
COLD: Final = 6
#: Rounds 2 to this one may not stall on new shapes.
EARLY: Final = 10


@dataclass(frozen=True)
class Pace:
    """How long rounds take: warm ones, the first `COLD` ones on average, and from the start to the end of the first.

    Memory is the peak of the sum over all processes: of what each has resident (`rss`, shared pages counted in each),
    and of each one's share of it (`pss`).
    """

    s_per_round: float
    cold_s_per_round: float
    #: On all cores together, warm.
    cpu_s_per_round: float
    #: Rounds 2 to `EARLY` (of a short run, to two thirds of it), by example and on average, over those after them.
    early_ratio: float
    startup_s: float
    peak_rss_mb: float
    peak_pss_mb: float


@dataclass(frozen=True)
class Measurement:
    """Medians over `repeats` turns; ratios are taken within a turn. `plain` is PyTorch without us (`reference.py`)."""

    workload: str
    workers: int
    s_per_round: float
    cold_s_per_round: float
    cpu_s_per_round: float
    early_ratio: float
    startup_s: float
    peak_rss_mb: float
    peak_pss_mb: float
    floor_s_per_round: float
    ratio_to_floor: float
    plain: Pace
    #: How many times plain PyTorch takes as long.
    plain_ratio: float
    plain_cold_ratio: float
    plain_cpu_ratio: float
    rounds: int
    repeats: int


def measure(workload: str, rounds: int, workers: int, repeats: int) -> Measurement:
    floors, ours, plain = [], [], []
    for _ in range(repeats):
        floors.append(floor_of(workload, workers))
        ours.append(pace_of("run", workload, rounds, workers))
        plain.append(pace_of("plain", workload, rounds, workers))
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
        rounds=rounds,
        repeats=repeats,
    )


def floor_of(workload: str, workers: int) -> float:
    """Seconds of a round's bare products."""
    answer, _, _ = watched(_child("floor", workload, 1, workers, "auto"))
    return float(answer["seconds"])


def pace_of(
    what: str, workload: str, rounds: int, workers: int, start_method: str = "auto", kernels: bool = True
) -> Pace:
    """Of one run of ours (`run`), or of plain PyTorch (`plain`), which has no kernels of ours."""
    without = {} if kernels and what == "run" else {"FEDAVG_NATIVE": "0"}
    answer, began, memory = watched(_child(what, workload, rounds, workers, start_method), environment=without)
    seconds, cpu = answer["seconds"], answer["cpu_seconds"]
    cold = min(COLD, len(seconds) - 2)
    return Pace(
        s_per_round=median(seconds[cold:]),
        cold_s_per_round=fmean(seconds[:cold]),
        cpu_s_per_round=fmean(cpu[cold:-1]),  # ours evaluates in the last round
        early_ratio=early_ratio(seconds, answer["examples"]),
        startup_s=answer["first_end"] - began,
        peak_rss_mb=memory.rss,
        peak_pss_mb=memory.pss,
    )


def early_ratio(seconds: Sequence[float], examples: Sequence[float]) -> float:
    """How many times as long an example takes in the early rounds, without the first.

    >>> early_ratio([9.0] + [2.0] * 9 + [1.0] * 10, [5.0] * 20)
    2.0
    """
    by_example = [s / n for s, n in zip(seconds, examples, strict=True)]
    end = min(EARLY, len(by_example) * 2 // 3)
    return fmean(by_example[1:end]) / median(by_example[end:])


def watched(
    command: list[str], environment: dict[str, str] | None = None, limit_s: float | None = None
) -> tuple[dict[str, Any], float, TreeMemory]:
    """What a new process prints as its last line of JSON, when it was started, and its tree's memory."""
    began = time.time()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    ) as process:
        memory = TreeMemory(process.pid)
        memory.start()
        try:
            output, complaints = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise FedAvgError(f"'{' '.join(command)}' did not end within {limit_s:g} s") from None
        finally:
            memory.stop()
            _end(process)
    answers = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or not answers:
        last = "\n".join(complaints.strip().splitlines()[-5:])
        raise FedAvgError(f"'{' '.join(command)}' failed with exit code {process.returncode}: {last}")
    return json.loads(answers[-1]), began, memory


def _end(process: subprocess.Popen[str]) -> None:
    """Also what it has started and left behind, where the system can."""
    process.kill()
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _child(what: str, workload: str, rounds: int, workers: int, start_method: str) -> list[str]:
    arguments = [what, workload, str(rounds), str(workers), start_method]
    return [sys.executable, "-m", "fedavg.bench.child", *arguments]


def _middle(paces: list[Pace]) -> Pace:
    return Pace(*(median(values) for values in zip(*map(astuple, paces), strict=True)))


def _ratio(above: list[float], below: list[float]) -> float:
    """The median of the turns' ratios; 0 where the system does not tell the time on a core."""
    return median(a / b if b else 0.0 for a, b in zip(above, below, strict=True))
