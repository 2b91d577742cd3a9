"""What a local worker does with one job. Runs in a forked process, or in the server's own where there is no fork."""

from dataclasses import dataclass
from math import fsum

from torch import Tensor

from fedavg.client import Message, run_client
from fedavg.engine.trainer import Trainer
from fedavg.errors import Diverged
from fedavg.setup import Setup
from fedavg.states import ClientStates
from fedavg.sums import ExactSum
from fedavg.types import Examples, Split, Update, Work


@dataclass(frozen=True)
class TrainJob:
    """Train one client, and add its update to the worker's sum."""

    client: int
    work: Work


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


@dataclass(frozen=True)
class Evaluated:
    """For each metric the sum over the piece's predictions, and their number."""

    totals: dict[str, tuple[float, int]]


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
        self._round = 0

    def do(self, job: Job) -> Result:
        return self._train(job) if isinstance(job, TrainJob) else self._evaluate(job)

    def _train(self, job: TrainJob) -> Trained:
        if job.work.round != self._round:
            self._sum.reset()
            self._round = job.work.round
        message = run_client(self._setup, self._trainer, job.client, job.work, self._shared, self._states)
        try:
            update = self._arrived(message, job.work)
            self._sum.add(update.vector, update.weight)
        except Diverged as error:
            raise Diverged(f"client {job.client}: {error}") from None
        return Trained(update.weight, message.metrics, len(message.frame), self._sum.bound)

    def _arrived(self, message: Message, work: Work) -> Update:
        update = Update(self._setup.codec.decode(message.frame, self._size), message.weight)
        for stage in self._setup.stages:
            update = stage.on_arrival(update, work)
        return update

    def _evaluate(self, job: EvalJob) -> Evaluated:
        self._trainer.load(self._shared[: len(self._trainer.weights)])
        return Evaluated(self._trainer.evaluate(self._examples(job)))

    def _examples(self, job: EvalJob) -> Examples:
        if job.split == "train":
            return self._setup.data.client(job.piece)
        size = self._setup.task.eval_batch
        chunk = slice(job.piece * size, (job.piece + 1) * size)
        return Examples(self._setup.data.test.x[chunk], self._setup.data.test.y[chunk])


def eval_jobs(setup: Setup, split: Split) -> list[Job]:
    """The pieces of a set. They do not depend on the number of workers, so neither do the sums over them."""
    if split == "train":
        return [EvalJob(split, int(k)) for k in setup.eligible]
    return [EvalJob(split, piece) for piece in range(-(-len(setup.data.test) // setup.task.eval_batch))]


def combine(pieces: list[Evaluated]) -> dict[str, float]:
    """The mean of each metric over all pieces."""
    names = pieces[0].totals
    sums = {name: fsum(piece.totals[name][0] for piece in pieces) for name in names}
    counts = {name: sum(piece.totals[name][1] for piece in pieces) for name in names}
    return {name: sums[name] / max(counts[name], 1) for name in names}
