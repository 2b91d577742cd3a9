"""What a local worker does with one job. Runs in a forked process, or in the server's own where there is no fork."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedavg import trees
from fedavg.client import run_client
from fedavg.engine.trainer import Trainer
from fedavg.errors import Diverged
from fedavg.fleets.watchdog import Busy
from fedavg.setup import Setup
from fedavg.states import ClientStates
from fedavg.sums import ExactSum
from fedavg.types import Examples, Split, Work

if TYPE_CHECKING:
    from fedavg.secagg.ring import Encoding


@dataclass(frozen=True)
class TrainJob:
    """Train one client, and add its update to the worker's sum; a job of another `cohort` begins a new sum."""

    client: int
    work: Work
    cohort: int
    #: With secure aggregation: how the update becomes ring elements, which are given back instead of added.
    encoding: "Encoding | None" = None


@dataclass(frozen=True)
class EvalJob:
    """Evaluate one piece: a chunk of the test set, or the training examples of one client."""

    split: Split
    piece: int


Job = TrainJob | EvalJob


@dataclass(frozen=True)
class Trained:
    weight: float
    metrics: dict[str, float]
    bytes_up: int
    #: The bound of the worker's sum after this client (see ExactSum).
    bound: int
    #: The ring elements to be masked, with secure aggregation.
    ring: bytes = b""


@dataclass(frozen=True)
class Evaluated:
    """The sums of each metric over the piece."""

    sums: dict[str, list[float]]


Result = Trained | Evaluated


class Worker:
    """Has a trainer, reads what the server shares, and adds into its own ring of shared memory."""

    def __init__(
        self, setup: Setup, trainer: Trainer, shared: Tensor, ring: Tensor, states: ClientStates | None
    ) -> None:
        self._setup = setup
        self._trainer = trainer
        self._shared = shared
        self._states = states
        self._sum = ExactSum(ring)
        self._size = len(ring)
        self._cohort = 0

    def do(self, job: Job) -> Result:
        return self._train(job) if isinstance(job, TrainJob) else self._evaluate(job)

    def _train(self, job: TrainJob) -> Trained:
        if job.cohort != self._cohort:
            self._sum.reset()
            self._cohort = job.cohort
        try:
            message = run_client(self._setup, self._trainer, job.client, job.work, self._shared, self._states)
            vector = self._setup.codec.decode(message.frame, self._size)
            if job.encoding:  # bounds can not be kept on what is masked
                ring = job.encoding.encode(vector.numpy(), message.weight, message.metrics).ring
                return Trained(message.weight, message.metrics, len(message.frame), 0, ring.tobytes())
            update = self._setup.arrived(vector, message.weight, job.work)
            self._sum.add(update.vector, update.weight)
        except Diverged as error:
            raise Diverged(f"client {job.client}: {error}") from None
        return Trained(update.weight, message.metrics, len(message.frame), self._sum.bound)

    def _evaluate(self, job: EvalJob) -> Evaluated:
        self._trainer.load(self._shared[: len(self._trainer.weights)])
        sums = self._trainer.evaluate(self._examples(job))
        return Evaluated({name: values.tolist() for name, values in sums.items()})

    def _examples(self, job: EvalJob) -> Examples:
        if job.split == "train":
            return self._setup.data.client(job.piece)
        size = self._setup.task.eval_batch
        chunk = slice(job.piece * size, (job.piece + 1) * size)
        return trees.take(self._setup.data.test, chunk)


def eval_jobs(setup: Setup, split: Split) -> list[Job]:
    """The pieces of a set. They do not depend on the number of workers, so neither do the sums over them."""
    if split == "train":
        return [EvalJob(split, int(k)) for k in setup.eligible]
    return [EvalJob(split, piece) for piece in range(-(-len(setup.data.test) // setup.task.eval_batch))]


def describe(setup: Setup, job: Job, index: int) -> Busy:
    """A job as a watchdog knows it."""
    if isinstance(job, TrainJob):
        examples = float(setup.data.sizes[job.client]) * job.work.epochs
        return Busy(index, "train", examples, f"client {job.client} in round {job.work.round}")
    examples = float(setup.data.sizes[job.piece]) if job.split == "train" else 1.0
    return Busy(index, f"evaluate {job.split}", examples, f"piece {job.piece} of the evaluation on {job.split}")


def add_up(pieces: Sequence[Evaluated]) -> dict[str, Tensor]:
    """The sums over all pieces, exactly rounded: the order of the pieces can not change a bit."""
    columns = {name: zip(*(piece.sums[name] for piece in pieces), strict=True) for name in pieces[0].sums}
    return {name: torch.tensor([fsum(each) for each in sums], dtype=torch.float64) for name, sums in columns.items()}
