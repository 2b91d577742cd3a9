"""How worker processes start: forked with the server's memory, or as new processes that are sent what they need.

By `fork` (Linux) a worker is ready at once, shares all memory, and a user's objects need no pickling. By `spawn`
(macOS, Windows) it is a new Python that imports PyTorch and records its own step. By `forkserver` it is forked from a
third process that has imported only PyTorch. The result is the same, bit for bit.
"""

import gc
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import current_process, get_all_start_methods
from pathlib import Path
from typing import Final, Literal, final

from torch import Tensor

from fedavg.engine.memory import settle_before_fork, trim
from fedavg.engine.trainer import Engine
from fedavg.errors import FleetError, PlanError
from fedavg.fleets import parcels
from fedavg.fleets.parcels import Parcel, Unsendable
from fedavg.fleets.processes import WorkerProcess
from fedavg.fleets.sharing import SharedVector
from fedavg.fleets.worker import Worker
from fedavg.plan import Plan
from fedavg.setup import Setup, proved_trainer
from fedavg.states import ClientStates
from fedavg.types import FederatedData

Method = Literal["fork", "spawn", "forkserver"]
#: What a fork server imports before it forks the first worker.
PRELOADED: Final = ("fedavg.fleets.start",)


def method_of(plan: Plan) -> Method:
    """The plan's method, or the one that suits this system: macOS has `fork`, but its libraries do not survive it."""
    able = [method for method in get_all_start_methods() if method == "spawn" or hasattr(os, "fork")]
    if plan.start_method == "auto":
        return "fork" if "fork" in able and sys.platform != "darwin" else "spawn"
    if plan.start_method not in able:
        raise PlanError(f"start_method: got '{plan.start_method}', which this system lacks; expected one of "
                        f"auto, {', '.join(able)}")  # fmt: skip
    return plan.start_method  # type: ignore[return-value]


def check_not_imported(method: Method) -> None:
    """New processes import the script that started them; a script that starts a run on import would never end."""
    if method != "fork" and getattr(current_process(), "_inheriting", False):
        raise FleetError(
            "a worker imports this script, which would start another run; put the code that runs below: "
            "if __name__ == '__main__':"
        )


class Starter(ABC):
    """Starts the worker of a slot, at first and whenever the previous one is gone."""

    @abstractmethod
    def start(self, slot: int, siblings: Sequence[WorkerProcess]) -> WorkerProcess:
        """A process that is starting; `WorkerProcess.wait_until_ready` waits for it."""

    @abstractmethod
    def close(self) -> None:
        """No more workers are started."""


@final
class Forked(Starter):
    """Forks workers that are already built."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        settle_before_fork()

    def close(self) -> None:
        gc.unfreeze()

    def start(self, slot: int, siblings: Sequence[WorkerProcess]) -> WorkerProcess:
        # With a copy of the server's end of a pipe, a worker would outlive the server.
        inherited = [sibling.pipe for sibling in siblings]
        return WorkerProcess("fork", _as_it_is, (self._workers[slot],), inherited)


@dataclass(frozen=True)
class Desk:
    """What a worker that was not forked owns, and what it needs to build the rest."""

    #: A `Setup`, the `FederatedData` and the frozen weights by name.
    parcel: Parcel
    shared: SharedVector
    ring: SharedVector
    #: Where clients keep what they carry from round to round; None if they carry nothing.
    states: Path | None
    engine: Engine


@final
class Spawned(Starter):
    """Starts new processes that build their workers themselves."""

    def __init__(self, method: Method, desks: Sequence[Desk]) -> None:
        self._method, self._desks = method, desks

    def close(self) -> None:
        pass

    def start(self, slot: int, siblings: Sequence[WorkerProcess]) -> WorkerProcess:
        return WorkerProcess(self._method, worker_at, (self._desks[slot],), [], PRELOADED)


def packed_for_workers(setup: Setup, data: FederatedData, frozen: Mapping[str, Tensor], method: Method) -> Parcel:
    try:
        return parcels.pack((setup, data, frozen), method)
    except Unsendable as error:
        what = parcels.why_unsendable([*setup.plan.objects(), ("data", data)]) or f"the plan's parts: {error}"
        raise Unsendable(
            f"workers that are started by '{method}' must be sent what they train, and {what}. {parcels.remedy()}"
        ) from None


def _as_it_is(worker: Worker) -> Worker:
    return worker


def worker_at(desk: Desk) -> Worker:
    """Build the worker of a desk, in a new process."""
    setup, data, frozen = parcels.unpack(desk.parcel)
    trainer = proved_trainer(setup, data, frozen)
    trim()  # release the frozen weights that were built here before the parcel's replaced them
    if trainer.engine != desk.engine:
        raise FleetError(
            f"a worker would train by engine '{trainer.engine.name}' ({trainer.engine.reason}), and the server by "
            f"'{desk.engine.name}'; expected the same: does the task look at its process or at files that change?"
        )
    states = ClientStates(desk.states) if desk.states else None
    return Worker(setup, data, trainer, desk.shared.tensor, desk.ring.tensor, states)
