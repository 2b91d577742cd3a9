"""What a process and all that it started use: memory and time on a core, as Linux reports; zero elsewhere."""

import os
from dataclasses import dataclass
from mmap import PAGESIZE
from pathlib import Path
from threading import Event, Thread
from typing import Final

SAMPLE_S: Final = 0.2
#: Shares are looked up in every n-th sample: the system walks all pages for them, which slows the measured process.
SHARES_EVERY: Final = 10


@dataclass(frozen=True)
class Timed:
    """One round: by the clock, and on all cores together, which other work on the machine changes less; and of how many
    examples."""

    seconds: float
    cpu_seconds: float
    examples: float


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


def cpu_seconds() -> float:
    """Time on a core so far, of this process and those under it that still run."""
    return sum(map(_on_core, _tree(os.getpid()))) / 1e9


def _on_core(pid: int) -> int:
    """Nanoseconds of all threads of a process."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
    except OSError:
        return 0


def _tree(pid: int) -> list[int]:
    """A process and those that any of its threads has started, and so on."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
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
