"""The client's path, the same in every fleet: train on own data, pass the stages, encode."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
import torch
from torch import Tensor

from fedavg import seeds
from fedavg.codecs import Codec
from fedavg.engine.trainer import Trainer
from fedavg.setup import Setup
from fedavg.states import ClientStates
from fedavg.types import Examples, Work

#: From the weights before a step, shape (P,), to what is added to that step's gradient.
Correction = Callable[[Tensor], Tensor]


class Client:
    """What the client half of an algorithm may use: its examples, the model, its own random numbers.

    `state` holds what the client keeps from one of its rounds to the next: for algorithms that say `keeps_state`.
    """

    def __init__(
        self, k: int, examples: Examples, trainer: Trainer, seed: int, round: int, state: dict[str, Tensor]
    ) -> None:
        self.state = state
        self._k, self._seed = k, seed
        self._examples = examples
        self._trainer = trainer
        self._round = round

    @cached_property
    def _shuffle(self) -> np.random.Generator:
        return seeds.rng(self._seed, self._round, self._k, "shuffle")

    @cached_property
    def _augment(self) -> np.random.Generator:
        return seeds.rng(self._seed, self._round, self._k, "augment")

    @property
    def n(self) -> int:
        """n_k, the number of local examples."""
        return len(self._examples)

    @property
    def weights(self) -> Tensor:
        return self._trainer.weights

    def load(self, weights: Tensor) -> None:
        self._trainer.load(weights)

    def steps(self, batch: float) -> int:
        """How many steps an epoch has: the last batch may be short."""
        return ceil(self.n / min(batch, self.n))

    def sgd_epoch(self, batch: float, lr: float, correction: Correction | None = None) -> float:
        """One epoch of SGD over the local data in a new order; batch may be infinite. Returns the mean loss.

        With a correction, each step is w -= eta (∇l(w; b) + correction(w)).
        """
        x, y = self._examples.x, self._examples.y
        if batch < self.n:
            order = torch.from_numpy(self._shuffle.permutation(self.n))
            x, y = x.index_select(0, order), y.index_select(0, order)  # copies whole rows: x[order] is 10 x slower
        inputs, size = self._trainer.inputs(x, self._augment), int(min(batch, self.n))
        if correction is None:
            return float(self._trainer.sgd_epoch(inputs, y, size, lr)) / self.n
        return float(self._trainer.corrected_epoch(inputs, y, size, lr, correction)) / self.n

    def sgd_step(self, step: int, batch: float, lr: float) -> tuple[int, float]:
        """The step-th (from 1) minibatch of endless reshuffled epochs. Returns its size and its mean loss."""
        size = int(min(batch, self.n))
        epoch, place = divmod(step - 1, self.steps(batch))
        order = seeds.rng(self._seed, epoch, self._k, "epoch order").permutation(self.n)
        chosen = torch.from_numpy(order[place * size : (place + 1) * size])
        x, y = (
            self._trainer.inputs(self._examples.x.index_select(0, chosen), self._augment),
            self._examples.y.index_select(0, chosen),
        )
        return len(y), float(self._trainer.sgd_epoch(x, y, len(y), lr)) / len(y)

    def gradient(self) -> tuple[Tensor, float]:
        """∇F_k at the loaded weights, shape (P,), and the mean loss, over all local data."""
        return self._trainer.gradient(self._examples)


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
    states: ClientStates | None,
) -> Message:
    """Everything that client k does in a round. Only its result leaves it; what it keeps stays in `states`."""
    state = states.load(k, work.round) if states else {}
    with trainer.seeded(seeds.torch_seed(setup.plan.seed, work.round, k, "module")):
        client = Client(k, examples, trainer, setup.plan.seed, work.round, state)
        update = setup.algorithm.client_update(client, shared, work)
    for index, stage in enumerate(setup.stages):
        update = stage.on_client(update, work, setup.stage_rng(work.round, k, index))
    frame = _encode(setup.codec, update.vector, state, seeds.rng(setup.plan.seed, work.round, k, "codec"))
    if states:
        states.save(k, work.round, state)
    return Message(frame, update.weight, dict(update.metrics))


def _encode(codec: Codec, vector: Tensor, state: dict[str, Tensor], rng: np.random.Generator) -> bytes:
    """The frame for a change; with error feedback, what earlier frames left out goes first into this one."""
    if not codec.keeps_residual:
        return codec.encode(vector, rng)
    if "residual" in state:
        vector = vector + state["residual"]
    frame = codec.encode(vector, rng)
    state["residual"] = vector - codec.decode(frame, len(vector))
    return frame
