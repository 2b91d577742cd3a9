"""Times a workload and its floor in fresh processes, in turns, and watches the memory of the process tree."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from mmap import PAGESIZE
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any, Final

from fedavg.errors import FedAvgError

#: Rounds that do not count: the first ones fill caches.
WARM: Final = 2
SAMPLE_S: Final = 0.2
#: Shares are looked up in every so many samples: the system walks all pages for them, which slows the measured process.
SHARES_EVERY: Final = 10


@dataclass(frozen=True)
class Measurement:
    """Medians over `repeats` turns. Memory is the peak of the sum over all processes: of what each has resident
    (`rss`, shared pages counted in each), and of each one's share of it (`pss`)."""

    workload: str
    workers: int
    s_per_round: float
    floor_s_per_round: float
    ratio_to_floor: float
    startup_s: float
    peak_rss_mb: float
    peak_pss_mb: float
    rounds: int
    repeats: int


class TreeMemory(Thread):
    """Samples the memory of a process and its descendants from /proc; zero where there is no /proc."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._stop_asked = Event()
        self.rss = self.pss = 0.0

    def run(self) -> None:
        samples = 0
        while not self._stop_asked.wait(SAMPLE_S):
            samples += 1
            tree = _tree(self._pid)
            self.rss = max(self.rss, sum(_resident(pid) for pid in tree) / 1e6)
            if samples % SHARES_EVERY == 0:
                self.pss = max(self.pss, sum(_share(pid) for pid in tree) / 1e6)

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


def measure(workload: str, rounds: int, workers: int, repeats: int) -> Measurement:
    floors, rounds_s, startups, rss, pss = [], [], [], [], []
    for _ in range(repeats):
        floors.append(float(_child("floor", workload, rounds, workers)[0]["seconds"]))
        answer, began, memory = _child("run", workload, rounds, workers)
        rounds_s.append(median(answer["seconds"][WARM:] or answer["seconds"]))
        startups.append(answer["first_end"] - began)
        rss.append(memory.rss)
        pss.append(memory.pss)
    return Measurement(
        workload=workload,
        workers=workers,
        s_per_round=median(rounds_s),
        floor_s_per_round=median(floors),
        ratio_to_floor=median(ours / floor for ours, floor in zip(rounds_s, floors, strict=True)),
        startup_s=median(startups),
        peak_rss_mb=max(rss),
        peak_pss_mb=max(pss),
        rounds=rounds,
        repeats=repeats,
    )


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


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(below for child in children for below in _tree(int(child)))]


def _resident(pid: int) -> int:
    """Bytes that a process has in memory."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGESIZE
    except OSError:
        return 0


def _share(pid: int) -> int:
    """The same, with pages that several processes have divided among them."""
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:")), 0)
