"""`RayFleet`: the clients of a plan, simulated by the cores of a Ray cluster."""

from pathlib import Path
from typing import final

from fedavg.engine.trainer import Trainer
from fedavg.errors import FleetError, PlanError
from fedavg.fleets.pool import WorkerPool
from fedavg.fleets.ray.cluster import AUTO, LOCAL, check_installed, connect, disconnect
from fedavg.fleets.simulated import SimulatedFleet
from fedavg.plan import Plan
from fedavg.setup import Setup
from fedavg.states import ClientStates
from fedavg.types import FederatedData


@final
class RayFleet(SimulatedFleet):
    """Simulates all clients of a plan on Ray: one worker for each core of each node. The model is the local fleet's.

    `address` is 'local' (a Ray with the plan's workers, started on this machine for the run), 'auto' (the Ray that this
    machine is part of) or a host, with its `port`. `workers_per_node` is at most the cores of a node, and by default
    all of them. `code` is a package's folder or wheel to send to the nodes, if it is not installed there.

    >>> from fedavg import Plan, run
    >>> run(Plan(data="mnist", C=0.02, rounds=1, workers=1), fleet=RayFleet()).summary.rounds
    1
    """

    def __init__(
        self,
        address: str = LOCAL,
        port: int | None = None,
        workers_per_node: int | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__()
        if (port is None) != (address in (LOCAL, AUTO)):
            raise FleetError(f"fleet: got 'ray:{address}{f':{port}' if port is not None else ''}'; expected 'ray' (on "
                             "this machine), 'ray:auto' (the Ray that it is part of) or 'ray:HOST:PORT'")  # fmt: skip
        if workers_per_node is not None and workers_per_node < 1:
            raise FleetError(f"workers_per_node: got {workers_per_node}; expected 1 or more")
        if code is not None and not Path(code).exists():
            raise FleetError(f"code: got '{code}', which does not exist; expected a package's folder, or a wheel")
        self._address = address if port is None else f"{address}:{port}"
        self._per_node = workers_per_node
        self._code = Path(code).resolve() if code is not None else None

    def check(self, plan: Plan) -> None:
        check_installed()
        if plan.device != "cpu":
            raise PlanError(f"device: got '{plan.device}'; workers on Ray train on processors: expected 'cpu'")
        if plan.start_method != "auto":
            raise PlanError(f"start_method: got '{plan.start_method}'; Ray starts its own workers: expected 'auto'")

    def new_pool(self, setup: Setup, data: FederatedData, trainer: Trainer, states: ClientStates | None) -> WorkerPool:
        from fedavg.fleets.ray.pool import ActorPool
        from fedavg.fleets.ray.station import facts_of

        if connect(self._address, setup.plan.workers, self._code):
            self._scratch.callback(disconnect)
        size = setup.update_size(len(trainer.weights))
        return ActorPool(setup, data, states, facts_of(setup, data, trainer), size, self._per_node)
