"""The actors of a fleet: one for each core of each node, hired, introduced, lost and hired again.

It knows nothing about jobs. Everything that happens to an actor arrives as an `ActorEvent`, in order.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, final

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedavg.errors import FedAvgError, FleetError
from fedavg.fleets.ray.actor import pack_plan
from fedavg.fleets.ray.cluster import Node, living_nodes
from fedavg.fleets.ray.station import Facts, Introduction
from fedavg.plan import Plan

log = logging.getLogger("fedavg.run")

#: How often the cluster is asked for its nodes, in seconds.
LOOK_FOR_NODES_S: Final = 5.0
#: How long a run waits for all workers at its start; then it continues with those that are there.
ALL_READY_S: Final = 60.0
#: How long it waits for the first worker, and for another when all are lost.
FIRST_READY_S: Final = 600.0
#: After this many deaths of workers within one list of jobs, on live nodes, the jobs themselves are at fault.
MAX_DEATHS: Final = 10

#: The kind of an event: the name of the method that was called.
INTRODUCE: Final = "introduce"


@dataclass(frozen=True)
class ReadyActor:
    """An actor that is ready."""

    slot: int
    handle: Any
    node: Node
    introduction: Introduction

    @property
    def about(self) -> str:
        return f"worker {self.introduction.pid} on {self.node.host}"


@dataclass(frozen=True)
class ActorEvent:
    """A call to an actor has returned: with its result, or with the error that ended the actor."""

    slot: int
    method: str
    value: Any
    lost: RayError | None = None


@final
class Crew:
    """All actors. A slot number belongs to one actor and is never reused."""

    def __init__(self, plan: Plan, facts: Facts, workers_per_node: int | None, actor: type, options: Mapping[str, Any]):
        """`options`: further arguments of Ray's `options` for each actor."""
        self._plan, self._facts, self._per_node = ray.put(pack_plan(plan)), facts, workers_per_node
        self._actor: Any = ray.remote(  # type: ignore[call-overload]
            num_cpus=1, max_restarts=0, max_task_retries=0, concurrency_groups={"aside": 1}, enable_task_events=False,
            **options,
        )(actor)  # fmt: skip
        self.members: dict[int, ReadyActor] = {}
        self._hired: dict[int, tuple[Node, Any]] = {}
        self._replacing: set[int] = set()
        self._known: dict[str, Node] = {}
        self._refused: set[str] = set()
        self._events: SimpleQueue[ActorEvent] = SimpleQueue()
        self._numbers = count()
        self._looked_at = -LOOK_FOR_NODES_S
        self._alone_since = monotonic()
        self._told_of_rounding = False
        self._started = False
        self.deaths = 0

    # ------------------------------------------------------------------ the start

    def start(self) -> None:
        """Returns when all workers are ready, or when some are and the others fail to come in time."""
        nodes = living_nodes()
        for node in nodes:
            if self._per_node and self._per_node > node.cpus:
                raise FleetError(
                    f"workers_per_node: got {self._per_node}, but node {node.host} has {node.cpus} cores; expected at "
                    f"most that, or a node that is started with: ray start --num-cpus {self._per_node}"
                )
        self.look_for_nodes()
        began = monotonic()
        while self._hired and not (self.members and monotonic() - began > ALL_READY_S):
            for event in self.events(1.0):
                self.introduced(event)
        if self._hired:
            log.warning("%d workers are ready; %d more have no cores free yet, and join when they have",
                        len(self.members), len(self._hired))  # fmt: skip
        self._started = True

    # ------------------------------------------------------------------ events

    def call(self, member: ReadyActor, method: str, *args: Any) -> None:
        self._listen(member.slot, method, getattr(member.handle, method).remote(*args))

    def _listen(self, slot: int, method: str, ref: Any) -> None:
        def came(future: Any) -> None:
            error = future.exception()
            lost = error if isinstance(error, RayError) or error is None else RayError(str(error))
            self._events.put(ActorEvent(slot, method, None if error else future.result(), lost))

        ref.future().add_done_callback(came)

    def events(self, wait_s: float) -> list[ActorEvent]:
        """What has happened; waits at most `wait_s` for the first event. Looks for new nodes now and then."""
        self.look_for_nodes()
        self._check_somebody_is_there()
        found: list[ActorEvent] = []
        with suppress(Empty):
            found.append(self._events.get(timeout=wait_s))
            while True:
                found.append(self._events.get_nowait())
        return [event for event in found if event.slot in self.members or event.slot in self._hired]

    def _check_somebody_is_there(self) -> None:
        if self.members:
            self._alone_since = monotonic()
        elif monotonic() - self._alone_since > FIRST_READY_S:
            raise FleetError(
                f"no worker was ready for {FIRST_READY_S:.0f} s; expected one: are the cluster's cores in use by "
                "others? `ray status` shows it"
            )

    # ------------------------------------------------------------------ who is there

    def look_for_nodes(self) -> None:
        """Hire workers on new nodes; forget nodes that are gone."""
        if monotonic() - self._looked_at < LOOK_FOR_NODES_S:
            return
        self._looked_at = monotonic()
        living = {node.id: node for node in living_nodes()}
        for id in set(living) - set(self._known) - self._refused:
            if self._started:
                log.warning("node %s has joined, with %d cores", living[id].host, living[id].cpus)
            for _ in range(min(self._per_node or living[id].cpus, living[id].cpus)):
                self._hire(living[id])
        self._known = living

    def _hire(self, node: Node) -> int:
        slot = next(self._numbers)
        strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
        handle = self._actor.options(scheduling_strategy=strategy).remote()
        self._hired[slot] = (node, handle)
        self._listen(slot, INTRODUCE, handle.introduce.remote(self._plan))
        return slot

    def introduced(self, event: ActorEvent) -> ReadyActor | None:
        """The actor, now ready; None if it never will be."""
        node, handle = self._hired.pop(event.slot)
        replaces = event.slot in self._replacing
        self._replacing.discard(event.slot)
        if event.lost:
            self._not_hired(node, handle, event.lost)
            return None
        try:
            if isinstance(event.value, FedAvgError):
                raise event.value
            self._check_facts(event.value.facts, node)
        except FedAvgError as error:
            self._refuse(node, handle, error)
            return None
        self.deaths += replaces  # its node is alive, since it took another worker: so it was the worker that died
        self._check_deaths(f"on {node.host}")
        member = ReadyActor(event.slot, handle, node, event.value)
        self.members[event.slot] = member
        return member

    def _not_hired(self, node: Node, handle: Any, error: RayError) -> None:
        """Its process died before it was ready, or its node did."""
        _kill(handle)
        if node.id not in {living.id for living in living_nodes()}:
            return
        self.deaths += 1
        self._check_deaths(f"on {node.host} before it was ready: {_shown(error)}")
        self._replacing.add(self._hire(node))

    def _refuse(self, node: Node, handle: Any, error: FedAvgError) -> None:
        """An error at the start ends the run; later, the run continues without the node."""
        _kill(handle)
        about = type(error)(f"node {node.host}: {error}")
        if not self._started:
            raise about
        if node.id not in self._refused:
            self._refused.add(node.id)
            log.warning("%s; the run continues without it", about)

    def _check_facts(self, facts: Facts, node: Node) -> None:
        ours = self._facts
        for name, remedy in _REMEDIES.items():
            if getattr(facts, name) != getattr(ours, name):
                raise FleetError(f"{name} is '{getattr(facts, name)}'; expected '{getattr(ours, name)}', as where the "
                                 f"run was started: {remedy}")  # fmt: skip
        if facts.rounding != ours.rounding and not self._told_of_rounding:
            self._told_of_rounding = True
            log.warning("node %s rounds differently from this machine (another processor?): the model depends on which "
                        "node trains which client, and will not be the same bit for bit again", node.host)  # fmt: skip

    def lose(self, slot: int, why: str) -> None:
        """A worker is gone, or too slow: start another in its place, if its node is alive."""
        member = self.members.pop(slot, None)
        if member is None:
            return
        log.warning("%s is gone (%s); its clients of this round are trained again", member.about, why)
        _kill(member.handle)
        self._alone_since = monotonic()
        if member.node.id not in self._refused:
            self._replacing.add(self._hire(member.node))

    def _check_deaths(self, where: str) -> None:
        if self.deaths > MAX_DEATHS:
            raise FleetError(
                f"{self.deaths} workers died in one round, the last {where}; expected none. If memory ran out, use "
                "fewer workers per node or a smaller batch; Ray's logs of the node say more"
            )

    def close(self) -> None:
        for handle in [*(member.handle for member in self.members.values()), *(h for _, h in self._hired.values())]:
            _kill(handle)
        self.members, self._hired = {}, {}


#: What must be the same on every node, and the remedy if it is not.
_REMEDIES: Final = {
    "fedavg": "install the same version there",
    "torch": "install the same version there",
    "python": "install the same version there",
    "fingerprint": "put the same data there, and let FEDAVG_DATA or --data-dir name it",
    "engine": "use the same processors and compilers, or FEDAVG_NATIVE=0 everywhere",
}


def _kill(handle: Any) -> None:
    with suppress(Exception):  # the actor may be gone, and Ray with it
        ray.kill(handle)


def _shown(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
