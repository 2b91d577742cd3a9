"""The client's path, the same in every fleet: own data and state, the client half, the stages, encoding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from fedavg import seeds
from fedavg.attacks import Attack
from fedavg.client import Client
from fedavg.data.finite import check_finite
from fedavg.engine.trainer import Trainer
from fedavg.errors import Diverged, TaskError
from fedavg.metrics.training import numbers_sent
from fedavg.setup import Setup
from fedavg.states import StateStore
from fedavg.types import Examples, Update, Work


@dataclass(frozen=True)
class Message:
    """What leaves a client: the encoded update and the numbers that go with it."""

    frame: bytes
    weight: float
    metrics: dict[str, float]
    #: The vector that the frame was made from; it leaves a client only if the server is the same process.
    vector: Tensor = field(default_factory=lambda: torch.empty(0))


class ClientPath:
    """Everything that client k does in a round besides the client half of the algorithm, in every fleet:

        path = ClientPath(setup, trainer, k, examples, work, states)
        with path.training() as client:
            update = setup.algorithm.client_update(client, shared, work)
        message = path.message(update)

    Only the message leaves the client; what it keeps stays in `states`. `go_on` raises when there is no time left.
    """

    def __init__(
        self,
        setup: Setup,
        trainer: Trainer,
        k: int,
        examples: Examples,
        work: Work,
        states: StateStore | None,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        self._setup, self._trainer, self._k, self._own, self._work = setup, trainer, k, examples, work
        self._go_on, self._states = go_on, states
        self._state = states.load(k, work.round) if states else {}
        self._lie = setup.lie_of(k)
        self._examples = examples
        if self._lie:
            self._examples = self._lie.on_examples(examples, seeds.rng(setup.plan.seed, seeds.NONE, k, "attack"))

    @contextmanager
    def training(self) -> Iterator[Client]:
        """Provides the `Client` for the client half."""
        plan, k, round = self._setup.plan, self._k, self._work.round
        try:
            with self._trainer.seeded(seeds.torch_seed(plan.seed, round, k, "module")):
                yield Client(
                    k, self._examples, self._trainer, plan.seed, round, self._state, plan.drop_last, self._go_on
                )
        except TaskError as error:
            raise TaskError(f"client {k}: {error}") from error

    def message(self, update: Update, *, framed: bool = True) -> Message:
        """The update after the stages, encoded. If client and server are one process, a lossless codec need not write
        its frame (`framed`); the caller then adds the vector to the sum inside `blame_on`."""
        setup, k, work, lie = self._setup, self._k, self._work, self._lie
        measured = numbers_sent(setup.algorithm_measures, update.metrics)
        looked_at = bool(setup.stages) or lie is not None  # stages and attacks would not report a non-finite update
        if not all(map(isfinite, measured.values())) or (looked_at and not _is_finite(update.vector)):
            check_finite(self._examples, f"client {k}")
        for index, stage in enumerate(setup.stages):
            update = stage.on_client(update, work, setup.stage_rng(work.round, k, index))
        if lie:
            told = lie.on_update(update.vector, seeds.rng(setup.plan.seed, work.round, k, "attack"))
            update = replace(update, vector=told)
        frame = b""
        if framed:
            with blame_on(self._own, k):
                rng = seeds.rng(setup.plan.seed, work.round, k, "codec")
                frame = _frame(setup, lie, update.vector, self._state, rng)
        if self._states:
            self._states.save(k, work.round, self._state)
        return Message(frame, update.weight, measured if setup.measures else {}, update.vector)


@contextmanager
def blame_on(examples: Examples, k: int) -> Iterator[None]:
    """If an update is refused because the client's data is at fault, the error says so: a smaller learning rate would
    not help."""
    try:
        yield
    except Diverged:
        check_finite(examples, f"client {k}")
        raise


def _is_finite(vector: Tensor) -> bool:
    return all(isfinite(float(end)) for end in vector.aminmax())  # one pass: both are NaN if any number is


def _frame(
    setup: Setup, lie: Attack | None, vector: Tensor, state: dict[str, Tensor], rng: np.random.Generator
) -> bytes:
    """The frame for a change; with error feedback, the residual of earlier frames is added first."""
    if lie and not lie.finite:  # no codec can encode it
        return vector.numpy().tobytes()
    codec = setup.codec
    if not codec.keeps_residual:
        return codec.encode(vector, rng)
    if "residual" in state:
        vector = vector + state["residual"]
    frame = codec.encode(vector, rng)
    state["residual"] = vector - codec.decode(frame, len(vector))
    return frame
