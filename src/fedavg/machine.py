"""What this process may use of the machine: its cores and its memory, also in a container or under `taskset`.

A container sees all cores of its host, but the kernel lets it use only a part of them: a set of cores (affinity), or a
share of time (a quota of a control group, v1 or v2). Knows where Linux writes that down; elsewhere there is no limit.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path, PurePosixPath
from typing import Final

PROC: Final = Path("/proc")
#: v1 writes "no limit" as the largest multiple of a page: from here on a number is none.
UNLIMITED_BYTES: Final = 1 << 60


@dataclass(frozen=True)
class Cores:
    """Those of the machine, those that this process may run on, and its quota in cores (or infinity)."""

    machine: int
    allowed: int
    quota: float

    @property
    def usable(self) -> int:
        """How many processes can run at full speed side by side; a quota of one and a half cores keeps two busy."""
        return max(1, min(self.allowed, ceil(min(self.quota, self.allowed))))


def cores() -> int:
    """The number of cores to use: the only place that decides it."""
    return look_at_cores().usable


def look_at_cores(proc: Path = PROC) -> Cores:
    machine = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    return Cores(machine, allowed, cpu_quota(proc))


def cpu_quota(proc: Path = PROC) -> float:
    """Cores' worth of time that the control groups of this process have; infinity if there is no limit."""
    new = (_quota(folder / "cpu.max") for folder in _groups(proc, None))
    old = (_old_quota(folder) for folder in _groups(proc, "cpu"))
    return min((*new, *old), default=inf)


def memory_limit(proc: Path = PROC) -> float:
    """Bytes that the control groups of this process may have in memory; infinity if there is no limit."""
    new = (_number(folder / "memory.max") for folder in _groups(proc, None))
    old = (_number(folder / "memory.limit_in_bytes") for folder in _groups(proc, "memory"))
    least = min((*new, *old), default=inf)
    return least if least < UNLIMITED_BYTES else inf


def memory_bytes(proc: Path = PROC) -> tuple[float, float]:
    """What the machine has, and what of it is free for this process; infinity if unknown."""
    rows = {row.split(":")[0]: row.split() for row in _text(proc / "meminfo").splitlines() if ":" in row}
    total, free = (int(rows[name][1]) * 1024 if name in rows else inf for name in ("MemTotal", "MemAvailable"))
    return total, min(free, memory_limit(proc))


def _groups(proc: Path, controller: str | None) -> Iterator[Path]:
    """The folders of this process's group and of those above it, as far as they can be seen: each may have a limit.

    `controller` is one of v1; None stands for v2.
    """
    member = _membership(proc, controller)
    if member is None:
        return
    for root, mounted in _mounts(proc, controller):
        # In a container the group's name may be that of the host, and what is mounted here the group itself.
        inside = member.relative_to(root) if member.is_relative_to(root) else PurePosixPath()
        for part in (inside, *inside.parents):
            yield mounted / part


def _membership(proc: Path, controller: str | None) -> PurePosixPath | None:
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (controller or "") in controllers.split(","):
            return PurePosixPath(path)
    return None


def _mounts(proc: Path, controller: str | None) -> Iterator[tuple[PurePosixPath, Path]]:
    """Which group is mounted where."""
    for line in _text(proc / "self" / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        wanted = kind == "cgroup2" if controller is None else kind == "cgroup"
        if wanted and (controller is None or controller in options.split()[-1].split(",")):
            root, mounted = before.split()[3:5]
            yield PurePosixPath(_unescaped(root)), Path(_unescaped(mounted))


def _unescaped(path: str) -> str:
    """Blanks and backslashes of a path are written as octal numbers."""
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, sign)
    return path


def _quota(path: Path) -> float:
    """v2: 'QUOTA PERIOD' in microseconds, or 'max PERIOD'."""
    quota, _, period = _text(path).partition(" ")
    return _share(quota, period)


def _old_quota(folder: Path) -> float:
    """v1: the same in two files; -1 is no limit."""
    return _share(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _share(quota: str, period: str) -> float:
    try:
        used, whole = int(quota), int(period)
    except ValueError:  # 'max', or no such file
        return inf
    return used / whole if used > 0 and whole > 0 else inf


def _number(path: Path) -> float:
    try:
        return int(_text(path))
    except ValueError:
        return inf


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
