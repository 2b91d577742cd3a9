"""What a simulation's worker does with one job: in a forked process, in a Ray actor, or in the server's process."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedavg import seeds, trees
from fedavg.client import Client
from fedavg.client_path import ClientPath, Message, blame_on
from fedavg.data.finite import check_finite
from fedavg.engine.trainer import Trainer
from fedavg.errors import DataError, Diverged, FedAvgError, FleetError, TaskError
from fedavg.fleets.attendance import SKETCH, Seen, look_at, seen_by, signs_of
from fedavg.fleets.singles import SingleRows
from fedavg.fleets.watchdog import Busy
from fedavg.metrics import Metric, add_up, report
from fedavg.metrics.spread import OnClients, spread_of, whole_report, worst_of
from fedavg.metrics.training import masked_numbers
from fedavg.setup import Setup
from fedavg.states import StateStore
from fedavg.sums import ExactSum
from fedavg.tasks import Task
from fedavg.types import Examples, FederatedData, Split, Update, Work

if TYPE_CHECKING:
    from fedavg.secagg.ring import DecodedSum, Encoding


@dataclass(frozen=True)
class TrainJob:
    """Train one client, and add its update to the worker's sum; a job of another `cohort` begins a new sum."""

    client: int
    work: Work
    cohort: int
    #: With secure aggregation: how the update becomes ring elements, which are returned instead of added.
    encoding: "Encoding | None" = None
    #: With single updates: the row of shared memory for this one; None: it is sent.
    row: int | None = None


@dataclass(frozen=True)
class EvalJob:
    """Evaluate one piece: a chunk of the test set, or the examples of one client, trained on or held out."""

    split: Split
    piece: int
    #: The round whose data it is.
    round: int = 1


@dataclass(frozen=True)
class TuneJob:
    """Fine-tune the shared model for one client on its examples; judge both models on those that it holds out."""

    client: int
    epochs: int
    batch: float
    lr: float


Job = TrainJob | EvalJob | TuneJob


@dataclass(frozen=True)
class Trained:
    weight: float
    metrics: dict[str, float]
    bytes_up: int
    #: The bound of the worker's sum after this client (see ExactSum).
    bound: int
    #: The ring elements to be masked, with secure aggregation.
    ring: bytes = b""
    #: The update itself, float32, if the setup asks for single updates: it is then in no sum.
    single: bytearray | memoryview = field(default_factory=bytearray)
    #: What the server sees of the update, if the plan allows it.
    seen: Seen | None = None


@dataclass(frozen=True)
class Evaluated:
    """The sums of each metric over the piece."""

    sums: dict[str, list[float]]


@dataclass(frozen=True)
class Tuned:
    """A client's metrics on its held-out examples: of the shared model, and of its own."""

    client: int
    examples: int
    held_out: int
    shared: dict[str, float]
    own: dict[str, float]


JobResult = Trained | Evaluated | Tuned


class Worker:
    """Has a trainer, reads what the server shares, and adds updates to its own ring in shared memory."""

    def __init__(
        self,
        setup: Setup,
        data: FederatedData,
        trainer: Trainer,
        shared: Tensor,
        ring: Tensor,
        states: StateStore | None,
        singles: SingleRows | None = None,
    ) -> None:
        self._setup = setup
        self._data = data
        self._trainer = trainer
        #: What the server shares, shape (P,) or (V P,) float32.
        self.shared = shared
        self._states = states
        self._singles = singles
        self._sum = ExactSum(ring)
        self._size = len(ring)
        self._frame_bytes = setup.codec.frame_bytes(len(ring)) or 0
        self._cohort = 0
        self._pieces: dict[Split, tuple[FederatedData, list[Examples]]] = {}
        #: The method for each kind of job.
        self.handlers: dict[type[Job], Callable[[Any], JobResult]] = {
            TrainJob: self._train,
            EvalJob: self._evaluate,
            TuneJob: self._tune,
        }

    def failure(self, error: Exception) -> FedAvgError:
        """Why a job has no result, as reported to the caller."""
        if isinstance(error, FedAvgError):
            return error
        told = "".join(traceback.format_exception(error))
        return TaskError(f"'{self._setup.task.name}' failed in a worker:\n{told}")

    def _train(self, job: TrainJob) -> Trained:
        if job.cohort != self._cohort:
            self._sum.reset()
            self._cohort = job.cohort
        k, work, framed = job.client, job.work, self._sends_frames(job)
        examples = self._data.at(work.round).client(k)
        path = ClientPath(self._setup, self._trainer, k, examples, work, self._states)
        try:
            with path.training() as client:
                update = self._setup.algorithm.client_update(client, self.shared, work)
            message = path.message(update, framed=framed)
            vector = self._decoded(message.frame, k) if framed else self._as_it_is(message.vector)
            with blame_on(examples, k):
                return self._counted(job, message, vector)
        except Diverged as error:
            raise Diverged(f"client {k}: {error}") from None

    def _sends_frames(self, job: TrainJob) -> bool:
        """False if a frame would only be written and read back, and the sum can take its content directly."""
        setup = self._setup
        plain = setup.codec.lossless and not job.encoding and not setup.single_updates
        return not plain or setup.lie_of(job.client) is not None

    def _counted(self, job: TrainJob, message: Message, vector: Tensor) -> Trained:
        """A client's message as the server counts it."""
        setup, size = self._setup, len(message.frame) or self._frame_bytes
        if job.encoding:  # the server cannot enforce bounds on masked updates
            measured = masked_numbers(setup.measures, message)
            ring = job.encoding.encode(vector.numpy(), message.weight, measured).ring
            return Trained(message.weight, message.metrics, size, 0, ring.tobytes())
        update = setup.arrived(vector, message.weight, job.work)
        if not setup.single_updates:
            seen = self._add(update)
            return Trained(update.weight, message.metrics, size, self._sum.bound, seen=seen)
        single, seen = self._single(update.vector, job.row), self._seen(update) if setup.shows_updates else None
        return Trained(update.weight, message.metrics, size, self._sum.bound, single=single, seen=seen)

    def _single(self, vector: Tensor, row: int | None) -> bytearray:
        """The bytes to send for a single update: none, if it has a row of shared memory."""
        if row is None or self._singles is None:
            return bytearray(vector.numpy())  # a tensor needs writable memory
        self._singles.write(row, vector)
        return bytearray()

    def _seen(self, update: Update) -> Seen | None:
        """What the server sees of a single update; None for a non-finite one, which the server leaves out."""
        found = look_at(update.vector, self._setup.plan.seed)
        return seen_by(found, update.weight) if isfinite(found.largest) else None

    def _add(self, update: Update) -> Seen | None:
        """Add to the sum; returns what the server sees of the update, if the plan allows it."""
        if not self._setup.shows_updates:
            self._sum.add(update.vector, update.weight)
            return None
        signs = signs_of(self._size, self._setup.plan.seed)
        return seen_by(self._sum.look_and_add(update.vector, update.weight, signs, SKETCH), update.weight)

    def _as_it_is(self, vector: Tensor) -> Tensor:
        """An update that no codec has checked; the user's code may have made it."""
        if vector.shape != (self._size,):
            got, name = tuple(vector.shape), self._setup.algorithm.name
            raise DataError(f"an update of algorithm '{name}' has shape {got}; expected ({self._size},)")
        return vector.detach().to(torch.float32)

    def _decoded(self, frame: bytes, k: int) -> Tensor:
        """The update in a frame. If an attacker sends no valid one, the reducer counts it as faulty."""
        try:
            return self._setup.codec.decode(frame, self._size)
        except DataError as error:
            if not self._setup.lie_of(k):
                raise
            if not self._setup.defence:
                raise Diverged(f"it lies, and a mean has no defence: {error}; expected a reducer") from None
            return torch.full((self._size,), nan)

    def _evaluate(self, job: EvalJob) -> Evaluated:
        self._trainer.load(self.shared[: len(self._trainer.weights)])
        about = f"client {job.piece}" if job.split in ("train", "held") else "the test set"
        return judged(self._trainer, self._examples(job), about)

    def _tune(self, job: TuneJob) -> Tuned:
        data, seed, trainer, k = self._data, self._setup.plan.seed, self._trainer, job.client
        client = Client(k, data.client(k), trainer, seed, seeds.NONE, {}, self._setup.plan.drop_last)
        client.load(self.shared[: len(trainer.weights)])
        held, metrics = data.held(k), self._setup.task.judged_by
        shared = report(metrics, trainer.evaluate(held))
        with trainer.seeded(seeds.torch_seed(seed, seeds.NONE, k, "module")):
            client.epochs(Work(seeds.NONE, job.epochs, job.batch, job.lr))
        if not all(isfinite(float(end)) for end in client.weights.aminmax()):
            raise Diverged(f"client {k}: fine-tuning diverged at lr={job.lr:g}; use a smaller lr")
        return Tuned(k, client.n, len(held), shared, report(metrics, trainer.evaluate(held)))

    def _examples(self, job: EvalJob) -> Examples:
        data = self._data.at(job.round)
        if job.split == "train":
            return data.client(job.piece)
        if job.split == "held":
            return data.held(job.piece)
        return self._judged_on(job.split, data)[job.piece]

    def _judged_on(self, split: Split, data: FederatedData) -> list[Examples]:
        """Built once while the data does not change: adding a trigger copies the test set."""
        if split not in self._pieces or self._pieces[split][0] is not data:
            self._pieces[split] = (data, server_pieces(self._setup, data, split))
        return self._pieces[split][1]


def judged(trainer: Trainer, examples: Examples, whose: str) -> Evaluated:
    """The sums of the task's metrics at the trainer's weights."""
    sums = trainer.evaluate(examples)
    if not all(bool(values.isfinite().all()) for values in sums.values()):
        check_finite(examples, whose)
    return Evaluated({name: values.tolist() for name, values in sums.items()})


def test_pieces(task: Task, test: Examples) -> list[Examples]:
    """A test set in chunks that do not depend on the number of workers."""
    return list(trees.batches(test, task.eval_batch))


def server_pieces(setup: Setup, data: FederatedData, split: Split) -> list[Examples]:
    """The chunks of the test set, unchanged or as an attack alters it."""
    assert data.test, "the plan's evaluation is checked before round 1"
    if split == "test":
        return test_pieces(setup.task, data.test)
    assert setup.attack, "only an attack has triggers"
    return test_pieces(setup.task, setup.attack.triggered(data.test))


def eval_jobs(setup: Setup, data: FederatedData, split: Split, round: int) -> list[Job]:
    """The pieces of a set. They do not depend on the number of workers, so neither do the sums over them."""
    if split == "train":
        return [EvalJob(split, int(k), round) for k in np.flatnonzero(data.at(round).sizes)]
    return [EvalJob(split, piece, round) for piece in range(len(server_pieces(setup, data, split)))]


def describe(data: FederatedData, job: Job, index: int) -> Busy:
    """A job as the watchdog sees it."""
    if isinstance(job, TrainJob):
        examples = float(data.sizes[job.client]) * job.work.epochs
        return Busy(index, "train", examples, f"client {job.client} in round {job.work.round}")
    if isinstance(job, TuneJob):
        return Busy(index, "fine-tune", float(data.sizes[job.client]) * job.epochs, f"client {job.client}")
    sizes = {"train": data.sizes, "held": data.held_sizes}.get(job.split)
    size = 1.0 if sizes is None else float(sizes[job.piece])
    return Busy(index, f"evaluate {job.split}", size, f"piece {job.piece} of the evaluation on {job.split}")


def judges(setup: Setup, round: int, able: np.ndarray) -> list[int]:
    """Who judges the model of a round: as many of the `able` clients as the plan says, in rising order.

    A service may have more clients than the plan's population; no more than K are asked.
    """
    wanted = min(each for each in (setup.plan.eval_clients, setup.plan.clients, len(able)) if each is not None)
    if wanted == len(able):
        return [int(k) for k in able]
    rng = seeds.rng(setup.plan.seed, round, seeds.NONE, "judges")
    return sorted(int(k) for k in rng.choice(able, wanted, replace=False))


def judged_by_clients(
    metrics: Mapping[str, Metric],
    pieces: Sequence[Evaluated],
    bytes_up: int,
    bytes_down: int,
    clients: Sequence[int] = (),
    groups: Sequence[int] = (),
) -> OnClients:
    """The metrics from each client's own sums; `clients` says whose they are, if that may be recorded, and `groups`
    gives each client's group in the plan's world, if it has groups."""
    each = [{name: torch.tensor(sums, dtype=torch.float64) for name, sums in piece.sums.items()} for piece in pieces]
    worst = worst_of(metrics, clients, each) if clients else {}
    whole = whole_report(metrics, add_up([piece.sums for piece in pieces]))
    sums = {g: add_up([p.sums for p, own in zip(pieces, groups, strict=True) if own == g]) for g in sorted(set(groups))}
    by_group = {str(group): whole_report(metrics, own) for group, own in sums.items()}
    return OnClients(len(pieces), whole, spread_of(metrics, each), bytes_up, bytes_down, worst, by_group)


def judged_together(
    metrics: Mapping[str, Metric], means: Mapping[str, float], count: int, bytes_up: int, bytes_down: int
) -> OnClients:
    """The same from the means of the sums over clients, by name, which is all that secure aggregation reveals."""
    totals = {
        name: torch.tensor([means[f"{name}.{place}"] * count for place in range(metric.size)], dtype=torch.float64)
        for name, metric in metrics.items()
    }
    return OnClients(count, whole_report(metrics, totals), {}, bytes_up, bytes_down)


def named_sums(piece: Evaluated) -> dict[str, float]:
    """Each sum by its name in `names_of_sums`."""
    return {f"{name}.{place}": value for name, sums in piece.sums.items() for place, value in enumerate(sums)}


def unclipped(decoded: "DecodedSum") -> Mapping[str, float]:
    """The means of a masked sum; refused if the sum was clipped to the ring, which would silently be wrong."""
    if decoded.saturated:
        raise FleetError(
            f"{decoded.saturated} sums of metrics were beyond 2^31, which a masked sum cannot hold; expected smaller "
            "ones: hold out fewer examples, or use a metric on another scale"
        )
    return decoded.metrics
