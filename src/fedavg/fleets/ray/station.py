"""What one actor holds and does, without Ray: a `Worker` as in the local fleet, and its jobs.

Two threads use it: one does the jobs, the other reports progress and gives back jobs that have not started.
"""

import os
import platform
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from time import monotonic
from typing import Final, final
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from torch import Tensor

from fedavg import seeds, trees
from fedavg.client import Client
from fedavg.engine.memory import keep_freed_memory
from fedavg.engine.trainer import Trainer
from fedavg.errors import FedAvgError
from fedavg.fleets.ray.pieces import PIECE_BYTES
from fedavg.fleets.ray.rings import RingPlace, add_rings, new_ring
from fedavg.fleets.worker import Job, JobResult, Trained, TrainJob, Worker
from fedavg.plan import Plan
from fedavg.setup import Setup, population_of, probed, proved_trainer, resolve, resolve_data
from fedavg.states import packed, unpacked
from fedavg.types import FederatedData

#: What `fetch` can return: a client's ring, update or state, or the sum.
FetchKey = tuple[str, int]
SUM: Final[FetchKey] = ("sum", 0)


@dataclass(frozen=True)
class Facts:
    """What must be the same wherever clients train, or the model would depend on which worker trains which client."""

    fingerprint: str
    engine: str
    fedavg: str
    torch: str
    python: str
    #: A digest of the weights after a few steps: processors may round differently.
    rounding: str


@dataclass(frozen=True)
class Introduction:
    """A worker that is ready."""

    host: str
    pid: int
    ring: RingPlace
    facts: Facts


@dataclass(frozen=True)
class StationReport:
    """The outcome of the jobs of one call: those that were done, by number, and the seconds that each took."""

    results: dict[int, JobResult]
    seconds: dict[int, float]
    error: FedAvgError | None
    #: What can be fetched now, and its bytes.
    held: dict[FetchKey, int]


def facts_of(setup: Setup, data: FederatedData, trainer: Trainer) -> Facts:
    """The facts of a new trainer; afterwards it has its initial weights again."""
    python = ".".join(platform.python_version_tuple()[:2])
    release = str(torch.__version__).partition("+")[0]
    rounding = _rounding(setup, data, trainer)
    return Facts(data.fingerprint, trainer.engine.name, version("fedavg"), release, python, rounding)


def _rounding(setup: Setup, data: FederatedData, trainer: Trainer) -> str:
    """How this machine rounds: two steps on the first client's examples."""
    initial, work = trainer.weights.clone(), setup.plan.work(1)
    first = probed(data)
    few = trees.take(first, slice(0, int(min(2 * work.batch, len(first)))))
    client = Client(0, few, trainer, setup.plan.seed, seeds.NONE, {}, setup.plan.drop_last)
    with trainer.seeded(0):
        client.load(initial)
        client.epochs(replace(work, epochs=1))
    digest = sha256(trainer.weights.numpy().tobytes()).hexdigest()
    trainer.load(initial)
    return digest


@final
class _Carried:
    """What clients keep, during one call: it arrives with the call, and is fetched after it."""

    def __init__(self, held: dict[FetchKey, bytes | bytearray | memoryview]) -> None:
        self.came: dict[int, bytearray] = {}
        self._held = held

    def load(self, k: int, before: int) -> dict[str, Tensor]:
        return unpacked(self.came.pop(k)) if k in self.came else {}

    def save(self, k: int, round: int, state: dict[str, Tensor]) -> None:
        self._held["state", k] = packed(state)


@final
class Station:
    """A worker and its queue. It is built on its node, from the plan and the data there."""

    def __init__(self, plan: Plan) -> None:
        keep_freed_memory()
        torch.set_num_threads(1)
        data = resolve_data(plan)
        self._setup = resolve(plan, population_of(data), data.test)
        trainer = proved_trainer(self._setup, data)
        size = len(trainer.weights)
        ring, self._place = new_ring(self._setup.update_size(size))
        self._size = len(ring)
        self._held: dict[FetchKey, bytes | bytearray | memoryview] = {}
        self._arriving = b""
        self._carried = _Carried(self._held)
        states = self._carried if self._setup.keeps_state else None
        self._worker = Worker(self._setup, data, trainer, torch.empty(0), ring, states)
        self._facts = facts_of(self._setup, data, trainer)
        self._lock = threading.Lock()
        self._call = 0
        self._queue: deque[tuple[int, Job]] = deque()
        self._current = -1
        self._began = 0.0

    def introduction(self) -> Introduction:
        return Introduction(platform.node(), os.getpid(), self._place, self._facts)

    # ------------------------------------------------------------------ the thread that works

    def share(self, vector: np.ndarray) -> None:
        """What the next jobs read, shape (P,) float32; it is not copied, and must not be written to."""
        with catch_warnings():  # PyTorch has no read-only tensors, and warns about it
            simplefilter("ignore", UserWarning)
            self._worker.shared = torch.from_numpy(vector)

    def share_pieces(self, last: bool, pieces: Sequence[bytes]) -> None:
        """The same in pieces; `last` marks the end."""
        self._arriving += b"".join(pieces)
        if last:
            self.share(np.frombuffer(self._arriving, np.float32))
            self._arriving = b""

    def feed(self, client: int, pieces: Sequence[bytes]) -> None:
        """What a client kept, for the next call; further pieces are appended."""
        kept = self._carried.came.setdefault(client, bytearray())
        for piece in pieces:
            kept += piece

    def do(self, call: int, jobs: list[tuple[int, Job]]) -> StationReport:
        """Do the jobs, except those that are given back meanwhile."""
        self._held.clear()
        with self._lock:
            self._queue = deque(jobs)
            self._call = call
        results: dict[int, JobResult] = {}
        seconds: dict[int, float] = {}
        error: FedAvgError | None = None
        while error is None and (begun := self._next()):
            index, job = begun
            try:
                done = self._worker.handlers[type(job)](job)
            except Exception as failure:
                error = self._worker.failure(failure)
            seconds[index] = monotonic() - self._began
            if error is None:
                results[index] = self._without_update(job, done)
        self._carried.came.clear()
        return StationReport(results, seconds, error, {key: len(held) for key, held in self._held.items()})

    def _next(self) -> tuple[int, Job] | None:
        with self._lock:
            begun = self._queue.popleft() if self._queue else None
            self._current, self._began = begun[0] if begun else -1, monotonic()
        return begun

    def _without_update(self, job: Job, result: JobResult) -> JobResult:
        """The result without the client's update or ring elements, which are fetched in pieces."""
        if not isinstance(job, TrainJob) or not isinstance(result, Trained):
            return result
        for kind, data in (("ring", result.ring), ("single", result.single)):
            if data:
                self._held[kind, job.client] = data
        return replace(result, ring=b"", single=bytearray())

    def add_up(self, rings: list[RingPlace]) -> np.ndarray:
        """The sum of the rings of this node's workers."""
        return add_rings(rings, self._size)

    def hold_sum(self, rings: list[RingPlace]) -> int:
        """The same, held to be fetched; returns its size in bytes."""
        self._held[SUM] = add_rings(rings, self._size).tobytes()
        return len(self._held[SUM])

    def fetch(self, key: FetchKey, first: int, count: int) -> list[bytes]:
        """`count` pieces of something held, from `first` on."""
        view = memoryview(self._held[key])
        starts = ((first + place) * PIECE_BYTES for place in range(count))
        return [bytes(view[start : start + PIECE_BYTES]) for start in starts]

    # ------------------------------------------------------------------ the other thread

    def give_back(self, call: int) -> list[int] | None:
        """Every second one of the jobs that have not started, the largest first; None if the call has not arrived."""
        with self._lock:
            if call > self._call:
                return None
            if call < self._call:
                return []
            left = list(self._queue)
            self._queue = deque(left[1::2])
            return [index for index, _ in left[0::2]]

    def how_far(self) -> tuple[int, float]:
        """The current job, or -1, and the seconds since it began."""
        with self._lock:
            return self._current, monotonic() - self._began
