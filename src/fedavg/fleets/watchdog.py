"""Which workers hang: silent for far longer than earlier jobs would explain.

Pure logic, without clocks and processes. Silence is counted in small steps while a worker is waited for, so no worker
seems to hang because the machine slept, or because the run was stopped with Ctrl-Z.
"""

from dataclasses import dataclass
from typing import Final

#: How often a worker's silence is checked, in seconds; also the most that one check counts.
LOOK_S: Final = 1.0
#: No worker counts as hung before this, however short the jobs were: the machine may be busy with something else.
SHORTEST_S: Final = 60.0
#: The limit before the duration of any job is known.
FIRST_S: Final = 900.0
#: A worker counts as hung when it takes this many times the slowest pace seen so far.
FACTOR: Final = 20.0
#: After this many hung workers on the same job, the job is at fault.
MOST_HANGS: Final = 3


@dataclass(frozen=True)
class Busy:
    """What a worker is busy with: its place in the list of jobs, and its size in examples to go through."""

    job: int
    kind: str
    size: float
    #: For people: which client, or which piece of an evaluation.
    about: str


@dataclass(frozen=True)
class Silence:
    slot: int
    task: Busy
    seconds: float
    limit_s: float


class Watchdog:
    """Learns the pace of each kind of job, and says which workers have been silent for too long."""

    def __init__(self, timeout_s: float | None) -> None:
        """`timeout_s` is how long a worker may take for a job; without it, the limit follows from earlier jobs."""
        self._timeout_s = timeout_s
        self._slowest: dict[str, float] = {}
        self._busy: dict[int, Busy] = {}
        self._silent_s: dict[int, float] = {}
        self._warned: set[int] = set()
        self._hangs: dict[int, int] = {}

    def new_list(self) -> None:
        """Jobs are counted from 0 again."""
        self._busy.clear()
        self._hangs.clear()

    def begins(self, slot: int, task: Busy) -> None:
        self._busy[slot] = task
        self._silent_s[slot] = 0.0
        self._warned.discard(slot)

    def done(self, slot: int) -> None:
        task = self._busy.pop(slot, None)
        if task is None:  # it answered after it was replaced
            return
        self.took(task, self._silent_s[slot])

    def took(self, task: Busy, seconds: float) -> None:
        """A job has taken this long."""
        self._slowest[task.kind] = max(self._slowest.get(task.kind, 0.0), seconds / max(task.size, 1.0))

    def gone(self, slot: int) -> None:
        """The worker is gone."""
        self._busy.pop(slot, None)

    def waited(self, seconds: float) -> tuple[list[Silence], list[Silence]]:
        """Time has passed: returns who has become suspicious, and who hangs and is no longer watched."""
        suspicious, hung = [], []
        for slot, task in list(self._busy.items()):
            self._silent_s[slot] += min(seconds, 2 * LOOK_S)
            silence = Silence(slot, task, self._silent_s[slot], self.limit_s(task))
            if silence.seconds >= silence.limit_s:
                self._hangs[task.job] = self._hangs.get(task.job, 0) + 1
                hung.append(silence)
                del self._busy[slot]
            elif silence.seconds >= silence.limit_s / 2 and slot not in self._warned:
                self._warned.add(slot)
                suspicious.append(silence)
        return suspicious, hung

    def limit_s(self, task: Busy) -> float:
        """The limit doubles after each hang of the same job, which may just be slower than any before."""
        if self._timeout_s is not None:
            return self._timeout_s
        pace = self._slowest.get(task.kind)
        limit = FIRST_S if pace is None else max(SHORTEST_S, FACTOR * pace * task.size)
        return float(limit * 2 ** self._hangs.get(task.job, 0))

    def hopeless(self, task: Busy) -> bool:
        return self._hangs.get(task.job, 0) >= MOST_HANGS
