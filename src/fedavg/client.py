"""`Client`: what the client half of an algorithm receives. It knows neither plans nor where it runs."""

from collections.abc import Callable, Iterator
from functools import cached_property
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn

from fedavg import seeds, trees
from fedavg.engine.pieces import single
from fedavg.engine.trainer import Trainer
from fedavg.metrics import Metric
from fedavg.optimizers import Correction, Optimizer, Steps
from fedavg.trees import Tree
from fedavg.types import Examples, Work

#: The prefix under which a client keeps its optimiser's state, if it keeps it.
_KEPT = "optimizer."


class Client:
    """What the client half of an algorithm may use: its examples, the model, its own random numbers.

    `epochs` is the fast path. For any other PyTorch code there are `module`, whose parameters are the weights
    themselves, `batches`, `loss` and `rng`. `state` holds what the client keeps from one of its rounds to the next, for
    algorithms that set `keeps_state`.

    >>> from dataclasses import dataclass
    >>> from fedavg import FedAvg, Plan, Update, run
    >>> @dataclass(frozen=True)
    ... class SignSteps(FedAvg):
    ...     name = "signsteps"
    ...
    ...     def client_update(self, client, weights, work):
    ...         client.load(weights)
    ...         for x, y in client.batches(work.batch):
    ...             loss = client.loss(x, y)
    ...             for p, g in zip(client.module.parameters(), torch.autograd.grad(loss, client.module.parameters())):
    ...                 p.data.sub_(work.lr * g.sign())
    ...         return Update(client.weights - weights, client.n, {"train_loss": loss.item()})
    >>> run(Plan(data="mnist", algorithm=SignSteps(), lr=0.001, C=0.02, rounds=1, workers=1)).summary.rounds
    1
    """

    def __init__(
        self,
        k: int,
        examples: Examples,
        trainer: Trainer,
        seed: int,
        round: int,
        state: dict[str, Tensor],
        drop_last: bool = False,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        """`go_on` is called before each epoch and each single step; it raises when the client is out of time."""
        self.state = state
        self._go_on = go_on
        self._k, self._seed = k, seed
        self._examples, self._n = examples, len(examples)
        self._trainer = trainer
        self._round = round
        self._drop_last = drop_last

    @cached_property
    def _shuffle(self) -> np.random.Generator:
        return seeds.rng(self._seed, self._round, self._k, "shuffle")

    @cached_property
    def _augment(self) -> np.random.Generator | None:
        """Only for tasks that augment: making a generator takes longer than a step of a small model."""
        return seeds.rng(self._seed, self._round, self._k, "augment") if self._trainer.task.augment else None

    @cached_property
    def rng(self) -> np.random.Generator:
        """This client's own random numbers in this round."""
        return seeds.rng(self._seed, self._round, self._k, "client")

    @property
    def n(self) -> int:
        """n_k, the number of local examples."""
        return self._n

    @property
    def examples(self) -> Examples:
        """The raw local examples."""
        return self._examples

    @property
    def optimizer(self) -> Optimizer:
        """The plan's optimiser, which `epochs` uses."""
        return self._trainer.optimizer

    @property
    def module(self) -> nn.Module:
        """The task's module in training mode, with the loaded weights; changing its parameters changes the weights."""
        return self._trainer.model.module

    @property
    def weights(self) -> Tensor:
        """The module's parameters and floating buffers as one vector, shape (P,)."""
        return self._trainer.weights

    def load(self, weights: Tensor) -> None:
        """Put these weights into the module."""
        self._trainer.load(weights)

    def loss(self, x: Tree, y: Tree) -> Tensor:
        """The task's loss on a batch from `batches`: a mean, ready to differentiate."""
        loss: Tensor = self._trainer.task.loss(trees.call(self.module, x), y)
        return loss

    def steps(self, batch: float) -> int:
        """The number of steps in an epoch; the last batch may be short."""
        size, used = self._batch(batch)
        return ceil(used / size)

    def epochs(self, work: Work, correction: Correction | None = None) -> float:
        """E epochs over the local data with the plan's optimiser, each in a new order. Returns the last mean loss.

        With a correction, each step follows the gradient ∇l(w; b) + pull (w - towards) + drift.
        """
        steps = self._begin(work.lr, correction)
        size, used = self._batch(work.batch)
        with self._trainer.explained("trained", self._examples):
            for _epoch in range(work.epochs):
                self._go_on()
                total = 0.0
                for piece in self._trainer.pieces(self._ordered(size, used), size, self._augment):
                    epoch = self._trainer.epoch_for(piece, steps)
                    total = single(total + piece.of_raw(epoch(piece, steps)))
        self._end(steps)
        return total / used

    def batches(self, batch: float) -> Iterator[tuple[Tree, Tree]]:
        """One epoch's batches (x, y) in a new order, as the module and the loss take them."""
        self._go_on()
        size, used = self._batch(batch)
        for _, made in self._trainer.batches(self._ordered(size, used), size, self._augment):
            yield made.x, made.y

    def step(self, number: int, batch: float, lr: float) -> tuple[int, float]:
        """The step with this number (from 1) of endless reshuffled epochs. Returns its batch's size and mean loss."""
        size, used = self._batch(batch)
        epoch, place = divmod(number - 1, self.steps(batch))
        order = seeds.rng(self._seed, epoch, self._k, "epoch order").permutation(self.n)[:used]
        chosen = trees.take(self._examples, torch.from_numpy(order[place * size : (place + 1) * size]))
        alone = Client(self._k, chosen, self._trainer, self._seed, self._round, self.state, go_on=self._go_on)
        alone._augment = self._augment  # one sequence of draws for all steps of a round
        return len(chosen), alone.epochs(Work(self._round, 1, size, lr))

    def gradient(self) -> tuple[Tensor, float]:
        """∇F_k at the loaded weights, shape (P,), and the mean loss, over all local data."""
        return self._trainer.gradient(self._examples)

    def sums(self, metric: Metric) -> Tensor:
        """The sums of a metric over the local examples at the current weights, shape (size,), for `Update.metrics`."""
        named = {metric.name: metric.bind(self._trainer.task.loss)}
        return self._trainer.evaluate(self._examples, named)[metric.name]

    def _batch(self, batch: float) -> tuple[int, int]:
        """The size of a batch, and how many examples an epoch uses: `drop_last` omits a short batch after full ones."""
        size = int(min(batch, self.n))
        return size, self.n - self.n % size if self._drop_last else self.n

    def _ordered(self, size: int, used: int) -> Examples:
        """The examples of one epoch; if they are a single batch, in their stored order."""
        if size == self.n:
            return self._examples
        return trees.take(self._examples, torch.from_numpy(self._shuffle.permutation(self.n)[:used]))

    def _begin(self, lr: float, correction: Correction | None) -> Steps:
        steps = self._trainer.steps(lr, correction)
        if steps.optimizer.keep and _KEPT + "taken" in self.state:
            steps.taken = int(self.state[_KEPT + "taken"])
            for name, slot in steps.slots.items():
                slot.copy_(self.state[_KEPT + name])
        return steps

    def _end(self, steps: Steps) -> None:
        if steps.optimizer.keep:
            self.state.update({_KEPT + name: slot.to("cpu") for name, slot in steps.slots.items()})
            self.state[_KEPT + "taken"] = torch.tensor([steps.taken])
