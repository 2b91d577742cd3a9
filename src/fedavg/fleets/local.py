"""The local fleet: clients are simulated by one persistent single-threaded process per core.

Workers are forked from this process once PyTorch, the data and the compiled model are in memory, so they start at
once, share all of it, and a user's own module needs no pickling. Weights and sums lie in shared memory; pipes carry
only small messages. A worker that dies or hangs is replaced and its clients of the round are run again.
"""

from mmap import mmap
from multiprocessing import get_all_start_methods

import torch
from torch import Tensor

from fedavg.engine.trainer import Trainer
from fedavg.errors import PlanError
from fedavg.fleets.pool import InlinePool, Memory, Pool, ProcessPool
from fedavg.fleets.simulated import SimulatedFleet
from fedavg.fleets.worker import Worker
from fedavg.plan import Plan
from fedavg.setup import Setup
from fedavg.states import ClientStates
from fedavg.types import FederatedData


def shared_tensor(size: int, dtype: torch.dtype) -> Tensor:
    """Zeros in anonymous memory that forked processes share; freed with the last of them."""
    buffer = mmap(-1, max(size, 1) * dtype.itemsize)
    return torch.frombuffer(buffer, dtype=dtype, count=size)


class LocalFleet(SimulatedFleet):
    """Simulates all clients of a plan on this machine, by as many processes as the plan has workers.

    >>> from fedavg import Plan, train
    >>> [event.round for event in train(Plan(data="mnist", C=0.02, rounds=1, workers=1), LocalFleet())]
    [0, 1]
    """

    gives_singles = True

    def check(self, plan: Plan) -> None:
        if _inline(plan) and plan.worker_timeout is not None:
            raise PlanError(
                f"worker_timeout: got {plan.worker_timeout:g}, but clients run in the server's own process here, "
                "which nobody watches; expected none"
            )

    def new_pool(self, setup: Setup, data: FederatedData, trainer: Trainer, states: ClientStates | None) -> Pool:
        size, count = len(trainer.weights), 1 if _inline(setup.plan) else setup.plan.workers
        shared = shared_tensor(size * setup.algorithm.vectors_down, torch.float32)
        rings = [shared_tensor(setup.update_size(size), torch.int64) for _ in range(count)]
        workers = [Worker(setup, data, trainer, shared, ring, states) for ring in rings]
        memory = Memory(shared, rings)
        return InlinePool(workers[0], memory) if _inline(setup.plan) else ProcessPool(setup, data, workers, memory)


def _inline(plan: Plan) -> bool:
    """True where clients run one after another in the server's own process."""
    return "fork" not in get_all_start_methods() or plan.device != "cpu"
