"""What processes use of the machine's memory, as Linux reports; nothing elsewhere."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Memory that processes share: inherited, and handed over by `multiprocessing`.
SHARED: Final = ("/dev/zero", "/dev/shm/pym-")
#: What is read of a mapping.
_NUMBERS: Final = frozenset({"Rss", "Pss", "Pss_Dirty", "Anonymous"})


@dataclass(frozen=True)
class MemoryShare:
    """Of some processes together, in MB (10^6 bytes): memory of their own, what they share, and mapped files."""

    own: float
    shared: float
    files: float

    @property
    def total(self) -> float:
        return self.own + self.shared + self.files


def share_of(pids: Iterable[int]) -> MemoryShare | None:
    """Their share (PSS) as it would be if nothing else ran; None where the system does not tell.

    Memory of their own is divided among those that have it. Of a file that is mapped, such as PyTorch's libraries,
    counts as much as the process that has most of it: others on the machine that have it too make it no smaller.
    """
    own = shared = 0.0
    files: dict[str, float] = {}
    found = False
    for pid in pids:
        here: dict[str, float] = {}
        for path, numbers in mappings(pid):
            found = True
            if path.startswith(SHARED):
                shared += numbers["Pss"]
            elif not path.startswith("/"):
                own += numbers["Pss"]
            else:
                own += numbers["Pss_Dirty"]  # a library's variables
                here[path] = here.get(path, 0) + numbers["Rss"] - numbers["Anonymous"]
        files = {path: max(files.get(path, 0), here.get(path, 0)) for path in files.keys() | here.keys()}
    return MemoryShare(*(kb * 1024 / 1e6 for kb in (own, shared, sum(files.values())))) if found else None


def own_mb() -> float:
    """Memory of this process's own, in MB; 0 where the system does not tell."""
    share = share_of([os.getpid()])
    return share.own if share else 0.0


def peak_mb() -> float:
    """The most that this process has had in memory since it began, in MB; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:")), 0.0)


def mappings(pid: int) -> list[tuple[str, dict[str, int]]]:
    """Each mapping's path, if it has one, and its numbers in kB; nothing of a process that is gone."""
    found: list[tuple[str, dict[str, int]]] = []
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, rest = line.partition(":")
        if " " in name:
            words = line.split(maxsplit=5)
            found.append((words[5] if len(words) > 5 else "", {}))
        elif name in _NUMBERS:
            found[-1][1][name] = int(rest.split()[0])
    return [(path, numbers) for path, numbers in found if numbers.keys() == _NUMBERS]
