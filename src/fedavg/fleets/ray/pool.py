"""A pool of Ray actors for a simulation: the counterpart of `ProcessPool` on a cluster."""

import logging
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, final

from torch import Tensor

from fedavg.fleets.pool import Finished, WorkerPool
from fedavg.fleets.ray.actor import Actor
from fedavg.fleets.ray.crew import Crew
from fedavg.fleets.ray.dispatch import Dispatch, Means, SharedInputs
from fedavg.fleets.ray.station import Facts
from fedavg.fleets.watchdog import Watchdog
from fedavg.fleets.worker import Job
from fedavg.setup import Setup
from fedavg.states import ClientStates
from fedavg.types import FederatedData

log = logging.getLogger("fedavg.run")


@final
class ActorPool(WorkerPool):
    """One actor per core of a cluster. What clients keep is stored here, and sent with the jobs."""

    def __init__(
        self,
        setup: Setup,
        data: FederatedData,
        states: ClientStates | None,
        facts: Facts,
        size: int,
        workers_per_node: int | None,
        actor: type = Actor,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`size`: numbers of an update."""
        self._told_of_full = False
        self.crew = Crew(setup.plan, facts, workers_per_node, actor, options or {})
        apart = bool(states or setup.secagg or setup.single_updates)
        watchdog = Watchdog(setup.plan.worker_timeout)
        self._means = Means(self.crew, data, states, watchdog, size, apart, count(1))
        try:
            self.crew.start()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        return [member.introduction.pid for member in self.crew.members.values()]

    def share(self, vector: Tensor) -> None:
        self._shared = SharedInputs(vector)
        if self._shared.pieces and not self._told_of_full:
            self._told_of_full = True
            log.warning(
                "Ray's object store has no room for the weights, in memory and on its disk; they are sent to each "
                "worker by itself, which is slower"
            )

    def run(self, jobs: Sequence[Job]) -> Finished:
        return Dispatch(self._means, self._shared, jobs).run()

    def close(self) -> None:
        self.crew.close()
