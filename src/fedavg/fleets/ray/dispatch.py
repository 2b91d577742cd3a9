"""One list of jobs, done by a crew: who has which jobs, who gives some back, who hangs, and the sum at the end.

Results come in the order of the jobs.
"""

import logging
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final, final

import numpy as np
import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError, RayTaskError
from torch import Tensor

from fedavg.errors import FleetError
from fedavg.fleets.pool import Finished
from fedavg.fleets.ray import pieces
from fedavg.fleets.ray.crew import INTRODUCE, ActorEvent, Crew, ReadyActor
from fedavg.fleets.ray.gather import Adder, LostSum, fetched, total_over
from fedavg.fleets.ray.handout import Handout
from fedavg.fleets.ray.station import FetchKey, StationReport
from fedavg.fleets.watchdog import LOOK_S, Silence, Watchdog
from fedavg.fleets.worker import Job, JobResult, Trained, TrainJob, describe
from fedavg.states import ClientStates, packed, unpacked
from fedavg.types import FederatedData

log = logging.getLogger("fedavg.run")

#: How often a busy worker is asked for its progress, in seconds.
ASK_S: Final = 5.0


@final
class SharedInputs:
    """What the jobs of a list read: once in the object store for all workers, or, if that is full, sent to each."""

    def __init__(self, vector: Tensor) -> None:
        values = np.ascontiguousarray(vector.detach().numpy())
        self.ref: Any = None
        self.pieces: list[bytes] = []
        try:
            self.ref = ray.put(values)
        except (ObjectStoreFullError, OutOfDiskError):
            self.pieces = pieces.cut(values.tobytes())
        #: The workers that have it already.
        self.with_slots: set[int] = set()


@dataclass(frozen=True)
class Means:
    """What all lists of jobs of a run share."""

    crew: Crew
    data: FederatedData
    states: ClientStates | None
    watchdog: Watchdog
    #: Numbers of an update.
    size: int
    #: True if each client's bytes are sent with the calls.
    apart: bool
    #: Rising numbers, one for each call.
    calls: Iterator[int]


@final
class Dispatch:
    """The jobs of one list while they are being done."""

    def __init__(self, means: Means, shared: SharedInputs, jobs: Sequence[Job]) -> None:
        self._crew, self._states, self._watchdog = means.crew, means.states, means.watchdog
        self._shared, self._jobs, self._size, self._calls = shared, jobs, means.size, means.calls
        self._tasks = [describe(means.data, job, index) for index, job in enumerate(jobs)]
        most = max(1, pieces.CALL_BYTES // (8 * max(means.size, 1))) if means.apart else None
        self._handout = Handout([task.size for task in self._tasks], most)
        self._results: list[JobResult | None] = [None] * len(jobs)
        self._total: Tensor | None = None
        self._call_of: dict[int, int] = {}
        self._watched: dict[int, int] = {}
        self._asked_at: dict[int, float] = {}

    def run(self) -> Finished:
        """Have all jobs done."""
        self._crew.deaths = 0
        self._watchdog.new_list()
        for slot in self._crew.members:
            self._handout.joins(slot)
        while True:
            self._hand_out()
            if self._handout.complete and self._added_up():
                return Finished([result for result in self._results if result is not None], self._total)
            if not self._handout.complete:
                self._steal()
                self._follow()

    # ------------------------------------------------------------------ jobs

    def _hand_out(self) -> None:
        for slot, numbers in self._handout.deal().items():
            member = self._crew.members[slot]
            self._call_of[slot] = next(self._calls)
            self._send_states(member, numbers)
            jobs = pickle.dumps([(number, self._jobs[number]) for number in numbers])
            self._crew.call(member, "do", self._call_of[slot], jobs, self._send_shared(member))
            self._watch(slot, numbers[0])
            self._asked_at[slot] = monotonic()

    def _send_shared(self, member: ReadyActor) -> Any:
        """The weights as the call's argument: nothing, if the worker has them."""
        shared = self._shared
        if member.slot in shared.with_slots:
            return None
        shared.with_slots.add(member.slot)
        sent = list(pieces.calls(shared.pieces))
        for place, some in enumerate(sent):
            member.handle.share_pieces.remote(place == len(sent) - 1, *some)
        return shared.ref

    def _send_states(self, member: ReadyActor, numbers: Sequence[int]) -> None:
        for job in (self._jobs[number] for number in numbers):
            if self._states and isinstance(job, TrainJob) and (state := self._states.load(job.client, job.work.round)):
                for some in pieces.calls(pieces.cut(packed(state))):
                    member.handle.feed.remote(job.client, *some)

    def _steal(self) -> None:
        if (slot := self._handout.victim()) is not None:
            self._handout.asked(slot)
            self._crew.call(self._crew.members[slot], "give_back", self._call_of[slot])

    # ------------------------------------------------------------------ events

    def _follow(self) -> None:
        """Wait for events, and handle all of them."""
        began = monotonic()
        for event in self._crew.events(LOOK_S):
            if event.method == INTRODUCE:
                if member := self._crew.introduced(event):
                    self._handout.joins(member.slot)
            elif event.lost:
                self._lose(event.slot, event.lost)
            else:
                self._note(event)
        self._look_for_hung(monotonic() - began)

    def _note(self, event: ActorEvent) -> None:
        if event.slot not in self._handout:  # of an earlier list
            return
        if event.method == "do":
            self._take(self._crew.members[event.slot], pickle.loads(event.value))
        elif event.method == "give_back":
            self._handout.given_back(event.slot, event.value)
        elif event.method == "how_far":
            number, _ = event.value
            if number >= 0 and number in self._handout.doing(event.slot) and number != self._watched.get(event.slot):
                self._watch(event.slot, number)

    def _take(self, member: ReadyActor, report: StationReport) -> None:
        if report.error:
            raise report.error
        self._watchdog.gone(member.slot)
        for number, result in report.results.items():
            self._watchdog.took(self._tasks[number], report.seconds[number])
            self._results[number] = result
        try:
            for key, held in report.held.items():
                self._take_held(member, key, held)
        except RayError as error:
            self._lose(member.slot, error)
            return
        self._handout.reported(member.slot, report.results)

    def _take_held(self, member: ReadyActor, key: FetchKey, held: int) -> None:
        """Fetch, in pieces, what a client sent or keeps."""
        kind, client = key
        number = next(n for n in self._handout.doing(member.slot) if getattr(self._jobs[n], "client", None) == client)
        job, result = self._jobs[number], self._results[number]
        assert isinstance(job, TrainJob)
        data = fetched(member, key, held)
        if kind == "state":
            assert self._states
            self._states.save(client, job.work.round, unpacked(data))
        else:
            assert isinstance(result, Trained)
            whole = replace(result, ring=bytes(data)) if kind == "ring" else replace(result, single=data)
            self._results[number] = whole

    def _lose(self, slot: int, error: RayError) -> None:
        if isinstance(error, RayTaskError):  # our own code failed there; another worker would fail too
            raise FleetError(f"a worker failed, which it never should: {error}") from error
        self._handout.lost(slot)
        self._watchdog.gone(slot)
        self._crew.lose(slot, type(error).__name__)

    # ------------------------------------------------------------------ hung workers

    def _watch(self, slot: int, number: int) -> None:
        self._watched[slot] = number
        self._watchdog.begins(slot, self._tasks[number])

    def _look_for_hung(self, seconds: float) -> None:
        now = monotonic()
        for slot, member in self._crew.members.items():
            if self._handout.doing(slot) and now - self._asked_at.get(slot, now) > ASK_S:
                self._asked_at[slot] = now
                self._crew.call(member, "how_far")
        suspicious, hung = self._watchdog.waited(seconds)
        for silence in suspicious:
            log.warning("%s; it is replaced after %.0f s", self._about(silence), silence.limit_s)
        for silence in hung:
            if self._watchdog.hopeless(silence.task):
                raise FleetError(
                    f"{self._about(silence)}, the same as the workers before it; expected an answer. Look for what can "
                    "be stuck in the task or the data, or allow more time: --worker-timeout SECONDS"
                )
            self._handout.lost(silence.slot)
            self._crew.lose(silence.slot, f"silent for {silence.seconds:.0f} s with {silence.task.about}")

    def _about(self, silence: Silence) -> str:
        about = self._crew.members[silence.slot].about
        return f"{about} has not answered for {silence.seconds:.0f} s ({silence.task.about})"

    # ------------------------------------------------------------------ sums

    def _added_up(self) -> bool:
        """True if the sum is complete; False if a worker was lost with its part of it: its jobs then wait again."""
        groups: dict[str, list[Adder]] = {}
        for slot, jobs in self._handout.by_slot.items():
            results = [self._results[job] for job in jobs]
            bounds = [result.bound for result in results if isinstance(result, Trained) and result.bound]
            if bounds:
                adder = Adder(self._crew.members[slot], len(bounds), max(bounds))
                groups.setdefault(adder.member.node.id, []).append(adder)
        try:
            self._total = total_over(list(groups.values()), self._size) if groups else None
        except LostSum as lost:
            self._lose(lost.slot, lost.error)
            return False
        return True
