"""Who does the jobs of a simulation: here, processes, which are replaced when they die or hang, or this process itself.

A pool hands out jobs and returns results in the order of the jobs. Only the worker knows what a job is (`worker.py`).
"""

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from time import monotonic
from typing import Any, Final, final

from torch import Tensor

from fedavg.errors import FedAvgError, FleetError
from fedavg.fleets.processes import WorkerProcess
from fedavg.fleets.singles import SingleRows
from fedavg.fleets.start import Starter
from fedavg.fleets.watchdog import LOOK_S, Busy, Silence, Watchdog
from fedavg.fleets.worker import Job, JobResult, Trained, TrainJob, Worker, describe
from fedavg.plan import Plan
from fedavg.sums import checked_bound
from fedavg.types import FederatedData

log = logging.getLogger("fedavg.run")

#: After this many deaths of workers within one round, another worker will not help.
MAX_DEATHS: Final = 10

#: Short jobs are handed out several at a time, since a message takes as long as such a job: this many at most, and
#: no more than this part of a worker's share of what is left, so that all end at about the same time.
TOGETHER: Final = 16
PART: Final = 1 / 8


@dataclass(frozen=True)
class Finished:
    """Results in the order of the jobs, and the exact sum of what was added to sums, shape (P,) int64, if any was."""

    results: list[JobResult]
    ring: Tensor | None


class WorkerPool(ABC):
    """Workers that do lists of jobs."""

    @property
    @abstractmethod
    def pids(self) -> list[int]:
        """The ids of the processes that do the jobs, if other than this one."""

    @abstractmethod
    def share(self, vector: Tensor) -> None:
        """What the next jobs read: weights, or all that an algorithm shares, shape (P,) or (V P,) float32."""

    @abstractmethod
    def run(self, jobs: Sequence[Job]) -> Finished:
        """Have all jobs done."""

    @abstractmethod
    def close(self) -> None:
        """End all processes."""


@dataclass(frozen=True)
class WorkerMemory:
    """The memory that the workers of one machine read, and that each of them adds to."""

    shared: Tensor
    rings: Sequence[Tensor]
    #: Where single updates go, if the plan has them and the workers were forked.
    singles: SingleRows | None = None

    def share(self, vector: Tensor) -> None:
        self.shared[: len(vector)].copy_(vector)

    def total(self, results: Sequence[JobResult], by_slot: Mapping[int, Sequence[int]]) -> Tensor | None:
        """The sum over the rings of the workers that added something, given the jobs that each worker did."""
        bounds = {slot: [_bound(results[job]) for job in jobs] for slot, jobs in by_slot.items()}
        used = [slot for slot, of_slot in bounds.items() if any(of_slot)]
        bound = 0
        for slot in used:
            bound = checked_bound(bound, max(bounds[slot]))
        if not used:
            return None
        first, *others = (self.rings[slot] for slot in used)
        return sum(others, start=first)


def _bound(result: JobResult) -> int:
    return result.bound if isinstance(result, Trained) else 0


@final
class InlinePool(WorkerPool):
    """One worker in this process, for one job after another."""

    def __init__(self, worker: Worker, memory: WorkerMemory) -> None:
        self._worker, self._memory = worker, memory

    @property
    def pids(self) -> list[int]:
        return []

    def share(self, vector: Tensor) -> None:
        self._memory.share(vector)

    def run(self, jobs: Sequence[Job]) -> Finished:
        results = [self._worker.handlers[type(job)](job) for job in jobs]
        return Finished(results, self._memory.total(results, {0: range(len(jobs))}))

    def close(self) -> None:
        pass


@final
class ProcessPool(WorkerPool):
    """One process per worker."""

    def __init__(self, plan: Plan, data: FederatedData, starter: Starter, memory: WorkerMemory) -> None:
        self._data, self._starter, self._memory = data, starter, memory
        self._watchdog = Watchdog(plan.worker_timeout)
        self._processes: list[WorkerProcess] = []
        try:
            for slot in range(len(memory.rings)):
                self._processes.append(starter.start(slot, self._processes))
            for process in self._processes:
                self._await(process)
        except BaseException:
            self.close()
            raise

    def _await(self, process: WorkerProcess) -> None:
        if not process.wait_until_ready():
            process.process.join()
            raise FleetError(
                f"a worker ended before it was ready, with exit code {process.process.exitcode}; expected it to start. "
                "If it says above that it starts processes itself, put what runs below: if __name__ == '__main__':"
            )

    @property
    def pids(self) -> list[int]:
        return [process.process.pid or 0 for process in self._processes]

    def share(self, vector: Tensor) -> None:
        self._memory.share(vector)

    def close(self) -> None:
        for process in self._processes:
            process.stop()
        self._processes = []
        self._starter.close()

    def run(self, jobs: Sequence[Job]) -> Finished:
        """Give each free worker the next job until all are done; what a dead worker did is done again."""
        tasks = [describe(self._data, job, index) for index, job in enumerate(jobs)]
        waiting = _Waiting(tasks)
        handed = dict.fromkeys(range(len(self._processes)), 1)
        results: list[JobResult | None] = [None] * len(jobs)
        sent: dict[int, deque[int]] = {slot: deque() for slot in range(len(self._processes))}
        done: dict[int, list[int]] = {slot: [] for slot in sent}
        deaths, loans = 0, _Loans(self._memory.singles)
        self._watchdog.new_list()
        while waiting or any(sent.values()):
            # One batch of jobs to do, and one to continue with while the server wakes up.
            while waiting and len(sent[slot := _least_busy(sent)]) <= handed[slot]:
                some = waiting.take(len(self._processes))
                with suppress(OSError):  # a dead worker is noticed when its reply is read
                    self._processes[slot].pipe.send([loans.lent(index, jobs[index]) for index in some])
                handed[slot] = len(some)
                if not sent[slot]:
                    self._watchdog.begins(slot, tasks[some[0]])
                sent[slot].extend(some)
            for slot in self._replied(slot for slot, queue in sent.items() if queue):
                replies = self._processes[slot].receive()
                if replies is None:
                    deaths += 1
                    self._replace(slot, deaths)
                    loans.lost(sent[slot])
                    waiting.put_back([*done[slot], *sent[slot]])
                    sent[slot], done[slot], handed[slot] = deque(), [], 1
                if not replies:
                    continue
                self._watchdog.done(slot)
                for reply in replies:
                    if isinstance(reply, FedAvgError):
                        self.close()
                        raise reply
                    job = sent[slot].popleft()
                    results[job] = loans.returned(job, reply)
                    done[slot].append(job)
                if sent[slot]:
                    self._watchdog.begins(slot, tasks[sent[slot][0]])
        finished = [result for result in results if result is not None]
        return Finished(finished, self._memory.total(finished, done))

    def _replied(self, slots: Iterable[int]) -> list[int]:
        """The workers with something to read, perhaps none. Hung workers are killed, so that their pipes end soon."""
        by_pipe: dict[Any, int] = {self._processes[slot].pipe: slot for slot in slots}
        began = monotonic()
        ready = [by_pipe[pipe] for pipe in wait(list(by_pipe), LOOK_S)]
        suspicious, hung = self._watchdog.waited(monotonic() - began)
        for silence in suspicious:
            log.warning("%s; it is replaced after %.0f s", self._about(silence), silence.limit_s)
        for silence in hung:
            self._end_hung(silence)
        return ready

    def _end_hung(self, silence: Silence) -> None:
        about = self._about(silence)
        self._processes[silence.slot].kill()
        if self._watchdog.hopeless(silence.task):
            self.close()
            raise FleetError(
                f"{about}, the same as the workers before it; expected an answer. Look for what can be "
                "stuck in the task or the data, or allow more time: --worker-timeout SECONDS"
            )
        log.warning("%s; it hangs: another takes its place, and its clients are trained again", about)

    def _about(self, silence: Silence) -> str:
        pid = self._processes[silence.slot].process.pid
        return f"worker {pid} has not answered for {silence.seconds:.0f} s ({silence.task.about})"

    def _replace(self, slot: int, deaths: int) -> None:
        """Start a new worker in place of a dead one; its ring starts again from zero."""
        dead = self._processes[slot]
        dead.stop()
        self._watchdog.gone(slot)
        if deaths > MAX_DEATHS:
            self.close()
            raise FleetError(
                f"{deaths} workers died in one round, the last with exit code {dead.process.exitcode}; expected none. "
                "If memory ran out (exit code -9), use fewer workers or a smaller batch."
            )
        siblings = [process for process in self._processes if process is not dead]
        self._processes[slot] = self._starter.start(slot, siblings)
        self._processes[slot].wait_until_ready()  # if it dies before it is ready, the next read from it shows that


def _least_busy(sent: dict[int, deque[int]]) -> int:
    return min(sent, key=lambda slot: len(sent[slot]))


class _Loans:
    """The rows for single updates that are lent to current jobs, by the number of the job."""

    def __init__(self, singles: SingleRows | None) -> None:
        self._singles = singles
        self._rows: dict[int, int] = {}

    def lent(self, index: int, job: Job) -> Job:
        """The job with a row, if it needs one and one is free."""
        if self._singles is None or not isinstance(job, TrainJob) or (row := self._singles.lend()) is None:
            return job
        self._rows[index] = row
        return replace(job, row=row)

    def returned(self, index: int, result: JobResult) -> JobResult:
        """The result with the update from its row."""
        row = self._rows.pop(index, None)
        if row is None or self._singles is None or not isinstance(result, Trained):
            return result
        return replace(result, single=self._singles.read(row))

    def lost(self, jobs: Iterable[int]) -> None:
        """A worker has died before it did these jobs."""
        for index in jobs:
            if self._singles and (row := self._rows.pop(index, None)) is not None:
                self._singles.give_back(row)


class _Waiting:
    """The jobs that are not handed out yet, in order."""

    def __init__(self, tasks: Sequence[Busy]) -> None:
        self._tasks = tasks
        self._jobs = deque(range(len(tasks)))
        self._size = sum(task.size for task in tasks)

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def take(self, workers: int) -> list[int]:
        """The jobs to hand out together next. The largest come first, so a large one goes alone."""
        enough, size, some = self._size * PART / workers, 0.0, list[int]()
        while self._jobs and len(some) < TOGETHER:
            size += self._tasks[self._jobs[0]].size
            if some and size > enough:
                break
            some.append(self._jobs.popleft())
        self._size -= sum(self._tasks[index].size for index in some)
        return some

    def put_back(self, jobs: Sequence[int]) -> None:
        self._jobs.extendleft(reversed(jobs))
        self._size += sum(self._tasks[index].size for index in jobs)
