"""The client's path, the same in every fleet: train on own data, pass the stages, encode."""

from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
import torch
from torch import Tensor

from fedavg import seeds
from fedavg.engine.trainer import Trainer
from fedavg.setup import Setup
from fedavg.types import Examples, Work


class Client:
    """What the client half of an algorithm may use: its examples, the model, its own random numbers."""

    def __init__(self, k: int, examples: Examples, trainer: Trainer, seed: int, round: int) -> None:
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

    def sgd_epoch(self, batch: float, lr: float) -> float:
        """One epoch of SGD over the local data in a new order; batch may be infinite. Returns the mean loss."""
        x, y = self._examples.x, self._examples.y
        if batch < self.n:
            order = torch.from_numpy(self._shuffle.permutation(self.n))
            x, y = x.index_select(0, order), y.index_select(0, order)  # copies whole rows: x[order] is 10 x slower
        inputs = self._trainer.inputs(x, self._augment)
        return float(self._trainer.sgd_epoch(inputs, y, int(min(batch, self.n)), lr)) / self.n

    def sgd_step(self, step: int, batch: float, lr: float) -> tuple[int, float]:
        """The step-th (from 1) minibatch of endless reshuffled epochs. Returns its size and its mean loss."""
        size = int(min(batch, self.n))
        epoch, place = divmod(step - 1, ceil(self.n / size))
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


def run_client(setup: Setup, trainer: Trainer, k: int, work: Work, weights: Tensor) -> Message:
    """Everything that client k does in a round. Only its result leaves it."""
    examples = setup.data.client(k)
    with trainer.seeded(seeds.torch_seed(setup.plan.seed, work.round, k, "module")):
        client = Client(k, examples, trainer, setup.plan.seed, work.round)
        update = setup.algorithm.client_update(client, weights, work)
    for index, stage in enumerate(setup.stages):
        update = stage.on_client(update, seeds.rng(setup.plan.seed, work.round, k, f"stage {index}"))
    frame = setup.codec.encode(update.vector, seeds.rng(setup.plan.seed, work.round, k, "codec"))
    return Message(frame, update.weight, dict(update.metrics))
