"""What a local worker does with one job. Runs in a forked process, or in the server's own where there is no fork."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedavg.client import run_client
from fedavg.engine.trainer import Trainer
from fedavg.errors import Diverged
from fedavg.fleets.watchdog import Busy
from fedavg.setup import Setup
from fedavg.states import ClientStates
from fedavg.sums import ExactSum
from fedavg.types import Examples, FederatedData, Split, Work

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
        self,
        setup: Setup,
        data: FederatedData,
        trainer: Trainer,
        shared: Tensor,
        ring: Tensor,
        states: ClientStates | None,
    ) -> None:
        self._setup = setup
        self._data = data
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
            examples = self._data.client(job.client)
            message = run_client(self._setup, self._trainer, job.client, examples, job.work, self._shared, self._states)
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
        return judged(self._trainer, self._examples(job))

    def _examples(self, job: EvalJob) -> Examples:
        if job.split == "train":
            return self._data.client(job.piece)
        return test_piece(self._data.test, self._setup.task.eval_batch, job.piece)


def judged(trainer: Trainer, examples: Examples) -> Evaluated:
    """The sums of the task's metrics at the trainer's weights."""
    sums = trainer.evaluate(examples)
    return Evaluated({name: values.tolist() for name, values in sums.items()})


def test_piece(test: Examples, size: int, piece: int) -> Examples:
    """The piece-th chunk of a test set."""
    chunk = slice(piece * size, (piece + 1) * size)
    return Examples(test.x[chunk], test.y[chunk])


def test_pieces(test: Examples, size: int) -> range:
    """The numbers of the chunks of a test set: they do not depend on the number of workers."""
    return range(-(-len(test) // size))


def eval_jobs(setup: Setup, data: FederatedData, split: Split) -> list[Job]:
    """The pieces of a set. They do not depend on the number of workers, so neither do the sums over them."""
    if split == "train":
        return [EvalJob(split, int(k)) for k in np.flatnonzero(data.sizes)]
    return [EvalJob(split, piece) for piece in test_pieces(data.test, setup.task.eval_batch)]


def describe(data: FederatedData, job: Job, index: int) -> Busy:
    """A job as a watchdog knows it."""
    if isinstance(job, TrainJob):
        examples = float(data.sizes[job.client]) * job.work.epochs
        return Busy(index, "train", examples, f"client {job.client} in round {job.work.round}")
    examples = float(data.sizes[job.piece]) if job.split == "train" else 1.0
    return Busy(index, f"evaluate {job.split}", examples, f"piece {job.piece} of the evaluation on {job.split}")


def add_up(pieces: Sequence[Evaluated]) -> dict[str, Tensor]:
    """The sums over all pieces, exactly rounded: the order of the pieces can not change a bit."""
    columns = {name: zip(*(piece.sums[name] for piece in pieces), strict=True) for name in pieces[0].sums}
    return {name: torch.tensor([fsum(each) for each in sums], dtype=torch.float64) for name, sums in columns.items()}
