"""`Trainer`: one model on one device, trained and judged on tensors. Each worker has one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedavg.engine import plain
from fedavg.engine.graph import GraphEpoch
from fedavg.engine.model import Model
from fedavg.engine.tape import Untraceable
from fedavg.errors import TaskError
from fedavg.metrics import checked_sums
from fedavg.tasks.lstm import PeepholeLSTM
from fedavg.tasks.task import Task
from fedavg.types import Examples

SgdEpoch = Callable[[Tensor, Tensor, int, float], Tensor]
#: How far a traced step may be from the plain one, relative to its length: far above rounding, far below a wrong graph.
AGREEMENT = 1e-3
#: What PyTorch raises when a module, a loss or a metric does not fit the data it is given.
USER_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError)


@dataclass(frozen=True)
class Engine:
    """Which path trains, and why; recorded with the run, since the paths may round differently."""

    name: str
    reason: str


class Trainer:
    """Start from given weights, take epochs of SGD, read the weights back."""

    def __init__(self, task: Task, seed: int, device: str = "cpu") -> None:
        self.model = Model(task, seed, device)
        self.task = task
        self._device = device
        self._sgd_epoch: SgdEpoch = self._plain_epoch
        self._kernels: AbstractContextManager[Any] = nullcontext()
        self.engine = Engine("plain", "not chosen yet")

    @property
    def weights(self) -> Tensor:
        """The current weights, shape (P,), on the CPU."""
        return self.model.vector.to("cpu")

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """PyTorch's generator, from which modules draw (dropout), seeded; what it was before is put back after."""
        if self._device != "cpu":
            torch.manual_seed(seed)
            yield
            return
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.default_generator.set_state(before)

    def load(self, weights: Tensor) -> None:
        self.model.load(weights)

    def inputs(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Raw examples as the module's input in training."""
        if self.task.augment is None:
            return self.prepare(x)
        return _channels_last(self.task.augment(x.to(self._device), rng))

    def prepare(self, x: Tensor) -> Tensor:
        """Raw examples as the module's input in evaluation."""
        return _channels_last(self.task.prepare(x.to(self._device)))

    def sgd_epoch(self, x: Tensor, y: Tensor, batch: int, lr: float) -> Tensor:
        """One pass over prepared examples, in order. Returns the sum of the losses met on the way."""
        y = y.to(self._device)
        try:
            if self.task.pack is None:
                return self._sgd_epoch(x, y, batch, lr)
            total = torch.zeros((), device=self._device)
            for xs, ys in zip(x.split(batch), y.split(batch), strict=True):
                packed_x, packed_y = self.task.pack(xs, ys)
                rows = len(packed_y)
                total += self._sgd_epoch(packed_x, packed_y, rows, lr) * (len(ys) / rows)
            return total
        except Untraceable as error:  # a shape that the probe did not meet
            raise TaskError(f"'{self.task.name}' on {_form(x, y)}: {error}; use engine 'plain'") from error

    def corrected_epoch(
        self, x: Tensor, y: Tensor, batch: int, lr: float, correction: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """As `sgd_epoch`, with lr * correction(w) taken off as well in each step, w being the weights before it.

        Buffers, at the end of the vector, are not stepped. With a correction of zero the weights are those of
        `sgd_epoch`, bit for bit.
        """
        stepped = self.model.trainable
        total = torch.zeros((), device=self._device)
        for xs, ys in zip(x.split(batch), y.split(batch), strict=True):
            change = correction(self.weights).to(self._device)
            total += self.sgd_epoch(xs, ys, len(ys), lr)
            stepped.sub_(change[: len(stepped)], alpha=lr)
        return total

    def gradient(self, examples: Examples) -> tuple[Tensor, float]:
        """∇F_k at the loaded weights, shape (P,) (zero for buffers), and the mean loss."""
        loss, grads = plain.gradients(self.model, self.prepare(examples.x), examples.y.to(self._device))
        trainable = torch.cat([g.flatten() for g in grads])
        return torch.nn.functional.pad(trainable, (0, len(self.model.vector) - len(trainable))).to("cpu"), float(loss)

    @torch.no_grad()
    def evaluate(self, examples: Examples) -> dict[str, Tensor]:
        """The sums of each metric over all examples, float64. Runs in evaluation mode."""
        metrics = self.task.judged_by
        totals = {name: torch.zeros(metric.size, dtype=torch.float64) for name, metric in metrics.items()}
        self.model.module.eval()
        for start in range(0, len(examples), self.task.eval_batch):
            chunk = slice(start, start + self.task.eval_batch)
            for name, sums in self._judge(examples.x[chunk], examples.y[chunk].to(self._device)).items():
                totals[name] += sums
        self.model.module.train()
        return totals

    def _judge(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The sums of each metric over one batch."""
        try:
            if self.task.pack is not None:
                x, y = self.task.pack(x, y)
            with self._kernels:
                output = self.model.module(self.prepare(x))
            return {name: checked_sums(metric, output, y) for name, metric in self.task.judged_by.items()}
        except USER_ERRORS as error:
            raise TaskError(f"'{self.task.name}' can not be evaluated on {_form(x, y)}: {error}") from error

    def choose_engine(self, name: str, x: Tensor, y: Tensor) -> None:
        """Take the path called `name`; `auto` is the graph unless this module can not be traced faithfully.

        Both paths take a step from the same weights and random numbers, so that a wrong graph, or a module that does
        not fit its data, is found before round 1. The choice never depends on a timing.
        """
        recorded = Examples(x, y.to(self._device))
        with self.model.unchanged():
            doubled = torch.arange(len(y), device=self._device) // 2  # other data than what is recorded
            other = Examples(recorded.x[doubled], recorded.y[doubled])
            expected = self._step(self._plain_epoch, other)
            if name == "plain":
                self.engine = Engine("plain" + self._loops(), "asked for")
                return
            graph = GraphEpoch(self.model)
            reason = self._disagreement(graph, recorded, other, expected)
        if reason and name == "graph":
            raise TaskError(f"engine 'graph' can not train '{self.task.name}': {reason}; use engine 'plain'")
        if reason:
            self.engine = Engine("plain" + self._loops(), reason)
            return
        self._sgd_epoch, self._kernels = graph, graph.kernels
        fast = f" with native {' and '.join(sorted(graph.native))}" if graph.native else ""
        self.engine = Engine("graph" + fast + self._loops(), "traced, agrees with the plain path")

    def _loops(self) -> str:
        """Which LSTM kernel runs, where there is one: it depends on the machine, and kernels round differently."""
        kinds = {layer.kernel for layer in self.model.module.modules() if isinstance(layer, PeepholeLSTM)}
        return "".join(f" with {kind} LSTM" for kind in sorted(kinds))

    def _disagreement(self, graph: GraphEpoch, recorded: Examples, other: Examples, expected: Tensor) -> str:
        """Why the graph can not be used; empty if it can."""
        try:
            graph.prepare(recorded.x, recorded.y)
            gap, length = float((self._step(graph, other) - expected).norm()), float(expected.norm())
        except Untraceable as error:
            return f"it can not be traced: {str(error).splitlines()[0]}"
        except USER_ERRORS as error:
            return f"its traced step fails: {str(error).splitlines()[-1]}"
        if isfinite(length) and not gap <= AGREEMENT * length + 1e-6:
            return f"its traced step differs from the plain one by {gap:.2g} (length {length:.2g})"
        return ""

    def _step(self, epoch: SgdEpoch, batch: Examples) -> Tensor:
        """How one step at rate 1 changes the weights; they are put back."""
        before = self.model.vector.clone()
        with self.model.unchanged(), self.seeded(0):
            epoch(batch.x, batch.y, len(batch), 1.0)
            return self.model.vector - before

    def _plain_epoch(self, x: Tensor, y: Tensor, batch: int, lr: float) -> Tensor:
        try:
            return plain.sgd_epoch(self.model, x, y, batch, lr)
        except USER_ERRORS as error:
            raise TaskError(f"'{self.task.name}' can not be trained on {_form(x, y)}: {error}") from error


def _channels_last(x: Tensor) -> Tensor:
    """Images (B, C, H, W) in the memory order B, H, W, C: there pooling is ten times faster on the CPU, and
    convolutions as fast. A module sees the same shape and values."""
    if x.dim() != 4 or (x.shape[1] > 1 and x.is_contiguous(memory_format=torch.channels_last)):
        return x
    return torch.empty_like(x, memory_format=torch.channels_last).copy_(x)


def _form(x: Tensor, y: Tensor) -> str:
    return f"x {tuple(x.shape)} {x.dtype}, y {tuple(y.shape)} {y.dtype}"
