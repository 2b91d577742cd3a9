"""The client's path, the same in every fleet: train on own data, pass the stages, encode."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
from torch import Tensor

from fedavg import seeds
from fedavg.client import Client
from fedavg.codecs import Codec
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


def run_client(
    setup: Setup,
    trainer: Trainer,
    k: int,
    examples: Examples,
    work: Work,
    shared: Tensor,
    states: StateStore | None,
    go_on: Callable[[], None] = lambda: None,
) -> Message:
    """Everything that client k does in a round. Only its result leaves it; what it keeps stays in `states`.

    `go_on` raises when there is no time left.
    """
    state = states.load(k, work.round) if states else {}
    update, metrics = _update(setup, trainer, k, examples, work, shared, state, go_on)
    lie = setup.lie_of(k)
    if lie and not lie.finite:  # no codec would make a frame of it
        frame = update.vector.numpy().tobytes()
    else:
        with blame_on(examples, k):
            frame = _encode(setup.codec, update.vector, state, seeds.rng(setup.plan.seed, work.round, k, "codec"))
    if states:
        states.save(k, work.round, state)
    return Message(frame, update.weight, metrics)


def run_client_here(
    setup: Setup, trainer: Trainer, k: int, examples: Examples, work: Work, shared: Tensor, states: StateStore | None
) -> tuple[Update, dict[str, float]]:
    """The same where client and server are one process, for a lossless codec: what would be read from the frame, and
    the numbers beside it. Who adds it to a sum does so in `blame_on`."""
    state = states.load(k, work.round) if states else {}
    made = _update(setup, trainer, k, examples, work, shared, state)
    if states:
        states.save(k, work.round, state)
    return made


@contextmanager
def blame_on(examples: Examples, k: int) -> Iterator[None]:
    """If an update is refused since the client's data are at fault, that is said: a smaller learning rate would not
    help."""
    try:
        yield
    except Diverged:
        check_finite(examples, f"client {k}")
        raise


def _update(
    setup: Setup,
    trainer: Trainer,
    k: int,
    examples: Examples,
    work: Work,
    shared: Tensor,
    state: dict[str, Tensor],
    go_on: Callable[[], None] = lambda: None,
) -> tuple[Update, dict[str, float]]:
    """The update of client k as it is sent, and the numbers beside it."""
    lie = setup.lie_of(k)
    if lie:
        examples = lie.on_examples(examples, seeds.rng(setup.plan.seed, seeds.NONE, k, "attack"))
    try:
        with trainer.seeded(seeds.torch_seed(setup.plan.seed, work.round, k, "module")):
            client = Client(k, examples, trainer, setup.plan.seed, work.round, state, setup.plan.drop_last, go_on)
            update = setup.algorithm.client_update(client, shared, work)
    except TaskError as error:
        raise TaskError(f"client {k}: {error}") from error
    measured = numbers_sent(setup.algorithm_measures, update.metrics)
    looked_at = bool(setup.stages) or lie is not None  # by somebody who would not say what is wrong with it
    if not all(map(isfinite, measured.values())) or (looked_at and not _is_finite(update.vector)):
        check_finite(examples, f"client {k}")
    for index, stage in enumerate(setup.stages):
        update = stage.on_client(update, work, setup.stage_rng(work.round, k, index))
    if lie:
        told = lie.on_update(update.vector, seeds.rng(setup.plan.seed, work.round, k, "attack"))
        update = replace(update, vector=told)
    return update, measured if setup.measures else {}


def _is_finite(vector: Tensor) -> bool:
    return all(isfinite(float(end)) for end in vector.aminmax())  # one pass: both are NaN if any number is


def _encode(codec: Codec, vector: Tensor, state: dict[str, Tensor], rng: np.random.Generator) -> bytes:
    """The frame for a change; with error feedback, what earlier frames left out goes first into this one."""
    if not codec.keeps_residual:
        return codec.encode(vector, rng)
    if "residual" in state:
        vector = vector + state["residual"]
    frame = codec.encode(vector, rng)
    state["residual"] = vector - codec.decode(frame, len(vector))
    return frame
