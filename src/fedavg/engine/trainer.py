"""`Trainer`: one model on one device, trained and judged on tensors. Each worker has one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedavg import seeds, trees
from fedavg.engine import plain
from fedavg.engine.fit import AS_IT_IS, CANDIDATES, Fit, input_form, target_form
from fedavg.engine.graph import GraphEpochs
from fedavg.engine.model import Model
from fedavg.engine.pieces import Epoch, Epochs, Piece, cut
from fedavg.engine.tape import Untraceable
from fedavg.errors import TaskError
from fedavg.metrics import Metric, checked_sums
from fedavg.native import marked
from fedavg.optimizers import SGD, Correction, Optimizer, Steps
from fedavg.optimizers.optimizer import fresh
from fedavg.tasks.task import Task
from fedavg.trees import Tree
from fedavg.types import Examples

#: The largest error of a traced step, relative to the plain step's length: far above rounding, far below a wrong graph.
AGREEMENT = 1e-3
#: What PyTorch raises when a module, a loss or a metric does not fit the data it is given.
USER_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)


@dataclass(frozen=True)
class Engine:
    """Which path trains, and why; recorded with the run, since the paths may round differently."""

    name: str
    reason: str


class Trainer:
    """Start from given weights, take local epochs, read the weights back."""

    def __init__(
        self,
        task: Task,
        seed: int,
        device: str = "cpu",
        optimizer: Optimizer | None = None,
        frozen: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`frozen` is memory that already holds the frozen parameters (`Model`)."""
        self.model = Model(task, seed, device, frozen)
        self.task = task
        self.optimizer = optimizer or SGD()
        self._seed = seed
        self._device = device
        self._fit = Fit()
        self._plain = plain.PlainEpochs(self.model)
        self._graph: GraphEpochs | None = None
        self._kernels: AbstractContextManager[Any] = nullcontext()
        self.engine = Engine("plain", "not chosen yet")

    @property
    def weights(self) -> Tensor:
        """The current weights, shape (P,), on the CPU."""
        vector = self.model.vector
        return vector if vector.is_cpu else vector.cpu()

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Seeds PyTorch's generator, from which modules draw (dropout); restores its state on exit."""
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

    def inputs(self, x: Tree, rng: np.random.Generator | None) -> Tree:
        """Raw examples as the module's input in training; `rng` is for tasks that augment them."""
        if self.task.augment is None:
            return self.prepare(x)
        assert rng, "given where the task augments"
        return input_form(self.task.augment(self._moved(x), rng), self._fit)

    def prepare(self, x: Tree) -> Tree:
        """Raw examples as the module's input in evaluation."""
        return input_form(self.task.prepare(self._moved(x)), self._fit)

    def targets(self, y: Tree) -> Tree:
        """Raw targets as the loss takes them."""
        return target_form(self._moved(y), self._fit)

    def _moved(self, tree: Tree) -> Tree:
        return trees.changed(tree, self._on_device)

    def _on_device(self, leaf: Tensor) -> Tensor:
        return leaf.to(self._device)

    def collated(self, batch: Examples) -> Examples:
        """A batch of raw examples in the form that the task's `collate` gives it."""
        if self.task.collate is None:
            return batch
        made = self.task.collate(batch.x, batch.y)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise TypeError(f"collate gave {type(made).__name__}; expected a pair (x, y)")
        return Examples(*made)

    def batches(self, examples: Examples, size: int, rng: np.random.Generator | None) -> Iterator[tuple[int, Examples]]:
        """What the module is trained on, in order: each batch with the number of its raw examples."""
        if self.task.collate is None:
            whole = Examples(self.inputs(examples.x, rng), self.targets(examples.y))
            yield from ((len(batch), batch) for batch in trees.batches(whole, size))
            return
        for batch in trees.batches(examples, size):
            made = self.collated(batch)
            yield len(batch), Examples(self.inputs(made.x, rng), self.targets(made.y))

    def steps(self, lr: float, correction: Correction | None = None) -> Steps:
        """Local steps at this rate, with fresh optimiser state."""
        if correction is not None:
            towards, drift = (v if v is None else v.to(self._device) for v in (correction.towards, correction.drift))
            correction = replace(correction, towards=towards, drift=drift)
        return fresh(self.optimizer, len(self.model.trainable), lr, correction, self._device)

    def pieces(self, examples: Examples, size: int, rng: np.random.Generator | None) -> Iterator[Piece]:
        """One pass over raw examples, in order, in batches: the pieces that `epoch_for` has functions for."""
        if self.task.collate is None:
            yield from cut(Examples(self.inputs(examples.x, rng), self.targets(examples.y)), size)
            return
        for count, batch in self.batches(examples, size, rng):
            yield Piece(batch, len(batch), count / len(batch))

    def epoch_for(self, piece: Piece, steps: Steps) -> Epoch:
        """The engine's function for such a piece.

        With a correction each step follows ∇l(w; b) + pull (w - towards) + drift, w being the weights before it.
        Buffers are not stepped.
        """
        return (self._graph or self._plain).epoch_for(piece, steps)

    @contextmanager
    def explained(self, what: str, examples: Examples) -> Iterator[None]:
        """If the module cannot be `what` ('trained', 'evaluated') on raw examples, the error says on which, and why."""
        try:
            yield
        except Untraceable as error:  # a shape that the probe did not have
            raise TaskError(f"'{self.task.name}' on {_form(examples)}: {error}; use engine 'plain'") from error
        except USER_ERRORS as error:
            raise self._refusal(what, examples, error) from error

    def gradient(self, examples: Examples) -> tuple[Tensor, float]:
        """∇F_k at the loaded weights, shape (P,) (zero for buffers), and the mean loss."""
        with self.explained("trained", examples):
            made = self.collated(examples)
            loss, grads = plain.gradients(self.model, Examples(self.prepare(made.x), self.targets(made.y)))
        trainable = torch.cat([g.flatten() for g in grads])
        return torch.nn.functional.pad(trainable, (0, len(self.model.vector) - len(trainable))).to("cpu"), float(loss)

    @torch.no_grad()
    def evaluate(self, examples: Examples, metrics: Mapping[str, Metric] | None = None) -> dict[str, Tensor]:
        """The sums of each metric over all examples, float64; the task's metrics unless others are given.

        Runs in evaluation mode.
        """
        metrics = self.task.judged_by if metrics is None else metrics
        totals = {name: torch.zeros(metric.size, dtype=torch.float64) for name, metric in metrics.items()}
        self.model.module.eval()
        for batch in trees.batches(examples, self.task.eval_batch):
            for name, sums in self._judge(batch, metrics).items():
                totals[name] += sums
        self.model.module.train()
        return totals

    def _judge(self, batch: Examples, metrics: Mapping[str, Metric]) -> dict[str, Tensor]:
        """The sums of each metric over one batch."""
        with self.explained("evaluated", batch):
            made = self.collated(batch)
            y = self.targets(made.y)
            with self._kernels:
                output = trees.call(self.model.module, self.prepare(made.x))
            return {name: checked_sums(metric, output, y) for name, metric in metrics.items()}

    def choose_engine(self, name: str, examples: Examples) -> None:
        """Take the path called `name`, for a batch of raw examples like these; `auto` is the graph unless this module
        cannot be traced faithfully.

        Both paths take a step from the same weights and random numbers, so that a wrong graph, or a module that does
        not fit its data, is found before round 1. The choice never depends on a timing.
        """
        frozen = self.model.frozen.checksums()
        with self.model.unchanged():
            recorded, other, expected = self._fitted(examples)
            self.model.frozen.check_against(frozen)
            self._check_adapters(other)
            if name == "plain":
                self.engine = Engine(marked("plain" + self._loops()), "asked for")
                return
            graph = GraphEpochs(self.model)
            reason = self._disagreement(graph, recorded, other, expected)
        if reason and name == "graph":
            raise TaskError(f"engine 'graph' cannot train '{self.task.name}': {reason}; use engine 'plain'")
        if reason:
            self.engine = Engine(marked("plain" + self._loops()), reason)
            return
        self._graph, self._kernels = graph, graph.kernels
        fast = f" with native {' and '.join(sorted(graph.native))}" if graph.native else ""
        self.engine = Engine(marked("graph" + fast + self._loops()), "traced, agrees with the plain path")

    def ready_for(self, lengths: Sequence[int], examples: Examples) -> None:
        """Compile what batches of these lengths need, so that nothing is compiled later, and check it on them.

        If the module behaves differently at some length, each length is compiled separately.
        """
        graph = self._graph
        if graph is None or self.task.collate is not None:
            return  # what collate makes of a batch is not known in advance
        with self.model.unchanged():
            batches = [self._prepared(_repeated(examples, length)) for length in lengths]
            if not all(self._agrees(graph, batch) for batch in batches):
                graph.one_by_one()
            for batch in batches:
                graph.epoch_for(Piece(batch, len(batch)), self.steps(0.0))

    def _agrees(self, graph: GraphEpochs, batch: Examples) -> bool:
        try:
            expected = self._step(self._plain, batch)
        except USER_ERRORS:  # reported when a client has such a batch
            return True
        return not self._gap(graph, batch, expected)

    def fit(self, examples: Examples) -> None:
        """Find the form in which the module takes such examples, for a model that is only judged here.

        If there is none, judging it says why.
        """
        if self.trial(examples):
            self._fit = Fit()
        else:
            self._fitted(examples)

    def _fitted(self, examples: Examples) -> tuple[Examples, Examples, Tensor]:
        """A batch in the form that the module takes, which is kept; another batch of its rows; a plain step on that."""
        errors: dict[Fit, Exception] = {}
        for self._fit in CANDIDATES:
            try:
                batch = self._prepared(examples)
                doubled = torch.arange(len(batch), device=self._device) // 2  # other data than the recorded batch
                rows = trees.take(batch, doubled)
                other = Examples(input_form(rows.x, self._fit), target_form(rows.y, self._fit))
                return batch, other, self._step(self._plain, other)
            except USER_ERRORS as error:
                errors[self._fit] = error
        raise self._refusal("trained", examples, errors[AS_IT_IS]) from errors[AS_IT_IS]

    def _check_adapters(self, batch: Examples) -> None:
        """Refuse adapters that the module never calls: they would silently be trained to no effect."""
        if self.task.adapters is not None and (idle := plain.unused(self.model, batch)):
            more = ", ..." if len(idle) > 1 else ""
            raise TaskError(
                f"'{self.task.name}' does not use {len(idle)} of its adapted weights ({idle[0]}{more}); expected "
                "adapters that count: name other layers, as in lora:layers=query+value"
            )

    def _prepared(self, examples: Examples) -> Examples:
        rng = seeds.rng(self._seed, seeds.NONE, seeds.NONE, "probe")
        made = self.collated(examples)
        return Examples(self.inputs(made.x, rng), self.targets(made.y))

    def trial(self, examples: Examples) -> str:
        """Why a step on these examples fails; empty if it does not. Changes nothing."""
        before = self._fit
        try:
            self._fitted(examples)
        except TaskError as error:
            return str(error.__cause__).splitlines()[0]
        finally:
            self._fit = before
        return ""

    def _refusal(self, what: str, examples: Examples, error: Exception) -> TaskError:
        """PyTorch's reason is the last line, whatever its interpreter wrote above it."""
        text = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)  # else only the key is shown
        lines = text.strip().splitlines() or [type(error).__name__]
        reason = lines[-1] if "TorchScript" in lines[0] else "\n".join(lines)
        return TaskError(f"'{self.task.name}' cannot be {what} on {_form(examples)}: {reason}")

    def _loops(self) -> str:
        """Which layers run their own kernels: this depends on the machine, and kernels round differently.

        Such a layer has an attribute `kernel_name`, such as 'native LSTM'.
        """
        kinds = {getattr(layer, "kernel_name", None) for layer in self.model.module.modules()}
        return "".join(f" with {kind}" for kind in sorted(filter(None, kinds)))

    def _disagreement(self, graph: GraphEpochs, recorded: Examples, other: Examples, expected: Tensor) -> str:
        """Why the graph cannot be used; empty if it can."""
        try:
            graph.prepare(Piece(recorded, len(recorded)))
        except Untraceable as error:
            return f"it cannot be traced: {str(error).splitlines()[0]}"
        return self._gap(graph, other, expected)

    def _gap(self, graph: GraphEpochs, batch: Examples, expected: Tensor) -> str:
        """How far the graph's step is from the expected one; empty if the difference is only rounding."""
        try:
            gap, length = float((self._step(graph, batch) - expected).norm()), float(expected.norm())
        except Untraceable as error:
            return f"it cannot be traced: {str(error).splitlines()[0]}"
        except USER_ERRORS as error:
            return f"its traced step fails: {str(error).splitlines()[-1]}"
        if isfinite(length) and not gap <= AGREEMENT * length + 1e-6:
            return f"its traced step differs from the plain one by {gap:.2g} (length {length:.2g})"
        return ""

    def _step(self, epochs: Epochs, batch: Examples) -> Tensor:
        """How one step of plain SGD at rate 1 changes the weights, which are restored."""
        before, piece, steps = self.model.vector.clone(), Piece(batch, len(batch)), Steps(SGD(), 1.0)
        with self.model.unchanged(), self.seeded(0):
            epoch = epochs.epoch_for(piece, steps)
            epoch(piece, steps)
            self.model.check_buffers()
            return self.model.vector - before


def _repeated(examples: Examples, length: int) -> Examples:
    """`length` examples, with repeats if there are not enough."""
    return trees.take(examples, torch.arange(length) % len(examples))


def _form(examples: Examples) -> str:
    return f"x {trees.shapes(examples.x)}, y {trees.shapes(examples.y)}{_range(examples.y)}"


def _range(y: Tree) -> str:
    """The smallest and largest integer target, so that one that is not a class is easy to see."""
    if isinstance(y, Tensor) and not y.is_floating_point() and y.numel() and y.dtype != torch.bool:
        return f" from {int(y.min())} to {int(y.max())}"
    return ""
