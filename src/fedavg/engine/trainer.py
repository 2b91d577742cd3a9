"""`Trainer`: one model on one device, trained and judged on tensors. Each worker has one."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from fedavg.engine import plain
from fedavg.engine.graph import GraphEpoch
from fedavg.engine.model import Model
from fedavg.engine.tape import Untraceable
from fedavg.errors import TaskError
from fedavg.tasks.task import Task
from fedavg.types import Examples

SgdEpoch = Callable[[Tensor, Tensor, int, float], Tensor]
#: How far a traced step may be from the plain one, relative to its length: far above rounding, far below a wrong graph.
AGREEMENT = 1e-3


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
        self.engine = Engine("plain", "asked for")

    @property
    def weights(self) -> Tensor:
        """The current weights, shape (P,), on the CPU."""
        return self.model.vector.to("cpu")

    def load(self, weights: Tensor) -> None:
        self.model.load(weights)

    def inputs(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Raw examples as the module's input in training."""
        x = x.to(self._device)
        return self.task.augment(x, rng) if self.task.augment else self.task.prepare(x)

    def prepare(self, x: Tensor) -> Tensor:
        """Raw examples as the module's input in evaluation."""
        return self.task.prepare(x.to(self._device))

    def sgd_epoch(self, x: Tensor, y: Tensor, batch: int, lr: float) -> Tensor:
        """One pass over prepared examples, in order. Returns the sum of the losses met on the way."""
        return self._sgd_epoch(x, y.to(self._device), batch, lr)

    def gradient(self, examples: Examples) -> tuple[Tensor, float]:
        """∇F_k at the loaded weights, shape (P,) (zero for buffers), and the mean loss."""
        loss, grads = plain.gradients(self.model, self.prepare(examples.x), examples.y.to(self._device))
        trainable = torch.cat([g.flatten() for g in grads])
        return torch.nn.functional.pad(trainable, (0, len(self.model.vector) - len(trainable))).to("cpu"), float(loss)

    @torch.no_grad()
    def evaluate(self, examples: Examples) -> dict[str, tuple[float, int]]:
        """For each metric the sum over predictions, and their number. Runs in evaluation mode."""
        totals = {name: (0.0, 0) for name in self.task.metrics}
        self.model.module.eval()
        for start in range(0, len(examples), self.task.eval_batch):
            chunk = slice(start, start + self.task.eval_batch)
            y = examples.y[chunk].to(self._device)
            output = self.model.module(self.prepare(examples.x[chunk]))
            for name, metric in self.task.metrics.items():
                values = metric(output, y)
                total, count = totals[name]
                totals[name] = (total + float(values.sum(dtype=torch.float64)), count + values.numel())
        self.model.module.train()
        return totals

    def choose_engine(self, name: str, x: Tensor, y: Tensor) -> None:
        """Take the path called `name`; `auto` is the graph unless this module can not be traced faithfully.

        One batch of inputs is trained on by both paths from the same weights and random numbers, so that a wrong graph, or a
        module that does not fit its data, is found before round 1. The choice never depends on a timing.
        """
        probe = Examples(x, y.to(self._device))
        start = self.model.vector.clone()
        expected = self._probe(self._plain_epoch, probe, start)
        if name != "plain":
            graph = GraphEpoch(self.model)
            reason = self._disagreement(graph, probe, start, expected)
            if reason and name == "graph":
                raise TaskError(f"engine 'graph' can not train '{self.task.name}': {reason}; use engine 'plain'")
            if not reason:
                self._sgd_epoch = graph
            self.engine = Engine("plain", reason) if reason else Engine("graph", "traced, agrees with the plain path")
        self.load(start)

    def _disagreement(self, graph: SgdEpoch, probe: Examples, start: Tensor, expected: Tensor) -> str:
        """Why the graph can not be used; empty if it can."""
        try:
            change = self._probe(graph, probe, start)
        except Untraceable as error:
            return f"it can not be traced ({str(error).splitlines()[0]})"
        gap, length = float((change - expected).norm()), float(expected.norm())
        if isfinite(length) and not gap <= AGREEMENT * length + 1e-6:
            return f"its traced step differs from the plain one by {gap:.2g} (length {length:.2g})"
        return ""

    def _probe(self, epoch: SgdEpoch, probe: Examples, start: Tensor) -> Tensor:
        """How one step at rate 1 changes the weights."""
        self.load(start)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            epoch(probe.x, probe.y, len(probe), 1.0)
        return self.model.vector - start

    def _plain_epoch(self, x: Tensor, y: Tensor, batch: int, lr: float) -> Tensor:
        try:
            return plain.sgd_epoch(self.model, x, y, batch, lr)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            shapes = f"x {tuple(x.shape)} {x.dtype}, y {tuple(y.shape)} {y.dtype}"
            raise TaskError(f"'{self.task.name}' can not be trained on {shapes}: {error}") from error
