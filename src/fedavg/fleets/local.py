"""The local fleet: clients are simulated by one persistent single-threaded process per core.

Weights and sums are in shared memory; pipes carry only small messages. A worker that dies or hangs is replaced and its
clients of the round are run again. How workers start (`start.py`) does not change a bit of the result.
"""

import logging

import torch

from fedavg.cohorts import cohort_size
from fedavg.engine.trainer import Trainer
from fedavg.errors import PlanError
from fedavg.fleets.parcels import Unsendable
from fedavg.fleets.pool import InlinePool, ProcessPool, WorkerMemory, WorkerPool
from fedavg.fleets.sharing import SharedVector
from fedavg.fleets.simulated import SimulatedFleet
from fedavg.fleets.singles import SingleRows
from fedavg.fleets.start import (
    Desk,
    Forked,
    Method,
    Spawned,
    Starter,
    check_not_imported,
    method_of,
    packed_for_workers,
)
from fedavg.fleets.worker import Worker
from fedavg.plan import Plan
from fedavg.setup import Setup
from fedavg.states import ClientStates
from fedavg.types import FederatedData

log = logging.getLogger("fedavg.run")


class LocalFleet(SimulatedFleet):
    """Simulates all clients of a plan on this machine, by as many processes as the plan has workers.

    >>> from fedavg import Plan, train
    >>> [event.round for event in train(Plan(data="mnist", C=0.02, rounds=1, workers=1), LocalFleet())]
    [0, 1]
    """

    def check(self, plan: Plan) -> None:
        check_not_imported(method_of(plan))
        if plan.device == "cpu":
            return
        for name, default in (("worker_timeout", None), ("start_method", "auto")):
            if (value := getattr(plan, name)) != default:
                raise PlanError(
                    f"{name}: got {value}, but with device '{plan.device}' clients run in the server's own process; "
                    f"expected {default or 'none'}"
                )

    def new_pool(self, setup: Setup, data: FederatedData, trainer: Trainer, states: ClientStates | None) -> WorkerPool:
        method = method_of(setup.plan)
        if setup.plan.device != "cpu":
            return _inline(setup, data, trainer, states)
        shared, rings = _memory(setup, trainer, method, setup.plan.workers)
        starter: Starter
        singles = None
        if method == "fork":
            singles = self._singles(setup, rings)
            starter = Forked(
                [Worker(setup, data, trainer, shared.tensor, ring.tensor, states, singles) for ring in rings]
            )
        else:
            try:
                starter = _spawned(setup, data, trainer, states, method, shared, rings)
            except Unsendable as error:
                if setup.plan.start_method != "auto" or setup.plan.worker_timeout is not None:
                    raise
                log.warning("clients run one after another in this process: %s", error)
                return _inline(setup, data, trainer, states)
        memory = WorkerMemory(shared.tensor, [ring.tensor for ring in rings], singles)
        return ProcessPool(setup.plan, data, starter, memory)

    def _singles(self, setup: Setup, rings: list[SharedVector]) -> SingleRows | None:
        """Rows for the single updates of a cohort, if the plan uses them."""
        if not setup.single_updates:
            return None
        return SingleRows(cohort_size(setup.plan.C, self._population), len(rings[0].tensor))


def _memory(setup: Setup, trainer: Trainer, method: Method, count: int) -> tuple[SharedVector, list[SharedVector]]:
    """What workers read, and what each of them adds to."""
    size = len(trainer.weights)
    shared = SharedVector(size * setup.algorithm.vectors_down, torch.float32, method)
    return shared, [SharedVector(setup.update_size(size), torch.int64, method) for _ in range(count)]


def _inline(setup: Setup, data: FederatedData, trainer: Trainer, states: ClientStates | None) -> WorkerPool:
    shared, (ring,) = _memory(setup, trainer, "fork", 1)
    worker = Worker(setup, data, trainer, shared.tensor, ring.tensor, states)
    return InlinePool(worker, WorkerMemory(shared.tensor, [ring.tensor]))


def _spawned(
    setup: Setup,
    data: FederatedData,
    trainer: Trainer,
    states: ClientStates | None,
    method: Method,
    shared: SharedVector,
    rings: list[SharedVector],
) -> Spawned:
    parcel = packed_for_workers(setup, data, trainer.model.frozen.tensors, method)
    root = states.root if states else None
    return Spawned(method, [Desk(parcel, shared, ring, root, trainer.engine) for ring in rings])
