"""The client's path, the same in every fleet: train on own data, pass the stages, encode."""

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
from fedavg.types import Examples, Work


@dataclass(frozen=True)
class Message:
    """What leaves a client: the encoded update and the numbers that go with it."""

    frame: bytes
    weight: float
    metrics: dict[str, float]
    #: What the frame was made from; it leaves a client only where the server is the same process.
    vector: Tensor = field(default_factory=lambda: torch.empty(0))


def run_client(
    setup: Setup,
    trainer: Trainer,
    k: int,
    examples: Examples,
    work: Work,
    shared: Tensor,
    states: StateStore | None,
    go_on: Callable[[], None] = lambda: None,
    *,
    framed: bool = True,
) -> Message:
    """Everything that client k does in a round. Only its result leaves it; what it keeps stays in `states`.

    `go_on` raises when there is no time left. Where client and server are one process, a lossless codec need not write
    its frame (`framed`); who adds the vector to a sum does so in `blame_on`.
    """
    state = states.load(k, work.round) if states else {}
    lie, own = setup.lie_of(k), examples
    if lie:
        examples = lie.on_examples(examples, seeds.rng(setup.plan.seed, seeds.NONE, k, "attack"))
    try:
        with trainer.seeded(seeds.torch_seed(setup.plan.seed, work.round, k, "module")):
            client = Client(k, examples, trainer, setup.plan.seed, work.round, state, setup.plan.drop_last, go_on)
            update = setup.algorithm.client_update(client, shared, work)
    except TaskError as error:
        raise TaskError(f"client {k}: {error}") from error
    measured = numbers_sent(setup.algorithm_measures, update.metrics)
    looked_at = bool(setup.stages) or lie is not None  # by a caller that would not say what is wrong with it
    if not all(map(isfinite, measured.values())) or (looked_at and not _is_finite(update.vector)):
        check_finite(examples, f"client {k}")
    for index, stage in enumerate(setup.stages):
        update = stage.on_client(update, work, setup.stage_rng(work.round, k, index))
    if lie:
        told = lie.on_update(update.vector, seeds.rng(setup.plan.seed, work.round, k, "attack"))
        update = replace(update, vector=told)
    frame = b""
    if framed:
        with blame_on(own, k):
            frame = _frame(setup, lie, update.vector, state, seeds.rng(setup.plan.seed, work.round, k, "codec"))
    if states:
        states.save(k, work.round, state)
    return Message(frame, update.weight, measured if setup.measures else {}, update.vector)


@contextmanager
def blame_on(examples: Examples, k: int) -> Iterator[None]:
    """If an update is refused since the client's data are at fault, that is said: a smaller learning rate would not
    help."""
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
    """The frame for a change; with error feedback, what earlier frames left out goes first into this one."""
    if lie and not lie.finite:  # no codec would make a frame of it
        return vector.numpy().tobytes()
    codec = setup.codec
    if not codec.keeps_residual:
        return codec.encode(vector, rng)
    if "residual" in state:
        vector = vector + state["residual"]
    frame = codec.encode(vector, rng)
    state["residual"] = vector - codec.decode(frame, len(vector))
    return frame
