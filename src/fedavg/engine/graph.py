"""The fast path: a local epoch of any module as one native call.

The gradients of one batch are recorded as a flat list of ATen operators, once for batches of every length
(`lengths.py`), the optimiser's step is folded into it (`emit.py`), and the whole epoch is emitted as TorchScript
source, which PyTorch's own C++ interpreter runs without Python or autograd in between. What is gained, in order of
size: no Python between operators; no gradient buffer for a weight whose gradient is a matrix product
(`W -= lr * A @ B` is one BLAS call); no optimiser pass.
Convolutions that fit are done by Fourier transforms (`convolution.py`), and together with the pooling after them
(`pooled.py`); a large layer's step is taken while its gradient is passed on (`dense.py`).

An optimiser that needs whole gradients (Adam, clipping, a user's own) has them made by the same native code, batch by
batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import torch
from torch import Tensor

from fedavg import trees
from fedavg.engine.convolution import FastConvolutions
from fedavg.engine.dense import fuse_steps, is_fused
from fedavg.engine.emit import Emitter, Kind
from fedavg.engine.lengths import Recording
from fedavg.engine.model import Model
from fedavg.engine.native_epoch import Arena, native_epoch
from fedavg.engine.pooled import fuse_pooling, is_pooled
from fedavg.engine.tape import LooksAtData, Tape, Untraceable, as_a_compiler, record
from fedavg.optimizers.optimizer import Correction, Steps, step_with
from fedavg.types import Examples

#: The batches' tensors, the length of a batch, the step's numbers, its flat vectors, where gradients go: the loss.
NativeCall = Callable[[list[Tensor], int, list[float], Sequence[Tensor], list[Tensor]], Tensor]
WHOLE = Kind(whole=True)
#: A batch of so many examples can be compared with a shorter one that is still more than one: of one, layers may make
#: other tensors.
ENOUGH: Final = 3


@dataclass(frozen=True)
class StepCall:
    """What one call of a native epoch is told beside its data."""

    kind: Kind
    numbers: list[float]
    #: w, towards, drift, v: the flat vectors.
    flat: Sequence[Tensor]
    #: Where the gradient of each parameter goes, if that is not the parameter itself.
    targets: list[Tensor]


class GraphEpoch:
    """Local epochs of one model: compiles one native function per shape of examples and kind of step, and keeps it.

    It serves batches of every length, if the module does the same for every length; else there is one for each.
    """

    def __init__(self, model: Model) -> None:
        #: What stands in for PyTorch's own kernels, in evaluation too.
        self.kernels = FastConvolutions()
        #: The kinds of layers that have kernels of our own.
        self.native: set[str] = set()
        self._model = model
        self._parameters = [p.detach() for p in model.parameters.values()]
        self._empty = torch.empty(0, device=model.vector.device)
        self._compiled: dict[Any, NativeCall] = {}
        #: By the shape of examples: a step for all lengths; None where there is no such thing.
        self._recordings: dict[Any, Recording | None] = {}
        self._arena = Arena()
        #: How many native functions were compiled.
        self.compilations = 0

    def __call__(self, examples: Examples, size: int, steps: Steps) -> Tensor:
        """One pass over the examples in order, in batches (the last may be short); returns the sum of the losses."""
        call, losses = self._call(steps), list[Tensor]()
        for piece, batch in _pieces(examples, size, one_by_one=call.kind.whole):
            epoch = self.prepare(piece, batch, call.kind)
            data = [*trees.leaves(piece.x), *trees.leaves(piece.y)]
            losses.append(epoch(data, batch, call.numbers, call.flat, call.targets))
            if call.kind.whole:
                step_with(steps, self._model.trainable, self._gradient)
        return sum(losses[1:], start=losses[0])

    def prepare(self, examples: Examples, size: int, kind: Kind = Kind()) -> NativeCall:  # noqa: B008
        """The native function for batches of so many examples like these; compiled when first asked for."""
        leaves = (*trees.leaves(examples.x), *trees.leaves(examples.y))
        shape = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)
        if shape not in self._recordings:
            both = self._twice(trees.take(examples, slice(0, size)))
            self._recordings[shape] = both if both.joined() else None
        known = self._recordings[shape]
        key = (kind, shape, None if known else size)
        if key not in self._compiled:
            self._compiled[key] = self._compile(known or self._once(trees.take(examples, slice(0, size))), kind)
            self.compilations += 1
        return self._compiled[key]

    def _once(self, batch: Examples) -> Recording:
        return Recording([self._recorded(batch)], [len(batch)])

    def _twice(self, batch: Examples) -> Recording:
        if len(batch) < ENOUGH:
            batch = Examples(*(trees.joined([tree] * ENOUGH) for tree in (batch.x, batch.y)))
        both = [batch, trees.take(batch, slice(0, len(batch) - 1))]
        return Recording([self._recorded(examples) for examples in both], [len(examples) for examples in both])

    def _compile(self, recording: Recording, kind: Kind) -> NativeCall:
        """By our own kernels if each operator has one, else as TorchScript."""
        whole = recording.joined()
        assert whole, "looked at when it was recorded"
        tape = recording.joined(fuse_steps) or whole if kind.steps_weights and self._on_cpu else whole
        given = (tape, kind, self._parameters, self._arena, recording.lengths[0])
        own = native_epoch(*given) if self._on_cpu else None
        if own:
            self.native.add("steps")
            return own
        tape = recording.joined(partial(self._fused, kind=kind)) or whole
        if self.kernels.used or any(map(is_pooled, tape.ops)):
            self.native.add("convolution")
        if any(map(is_fused, tape.ops)):
            self.native.add("dense layers")
        return compile_epoch(tape, kind, self._parameters)

    def kind_of(self, steps: Steps) -> Kind:
        """What is compiled for such steps."""
        return self._call(steps).kind

    def one_by_one(self) -> None:
        """From now on each length of batches is recorded for itself."""
        self._recordings = dict.fromkeys(self._recordings)
        self._compiled = {}

    def _recorded(self, batch: Examples) -> Tape:
        """A step, which does not count."""
        with self._model.unchanged(), torch.random.fork_rng(devices=[]):
            try:
                return record(self._model, batch, self.kernels)
            except LooksAtData:
                with as_a_compiler():
                    return record(self._model, batch, self.kernels)

    def _fused(self, tape: Tape, kind: Kind) -> Tape:
        """The same step, with operators of our own where there are any."""
        if not self._on_cpu:
            return tape
        tape = fuse_pooling(tape)
        return fuse_steps(tape) if kind.steps_weights else tape

    @property
    def _on_cpu(self) -> bool:
        return self._empty.device.type == "cpu"

    def _call(self, steps: Steps) -> StepCall:
        """The steps as numbers and vectors: the gradient has pull (w - towards) + drift added to it."""
        folded = steps.optimizer.folded
        if folded is None:
            return StepCall(WHOLE, [0.0, 0.0, 0.0], [self._empty] * 4, self._model.split(self._gradient))
        pull, towards, drift = _joined(folded.weight_decay, steps.correction, self._model.trainable)
        kind = Kind(momentum=folded.momentum > 0, nesterov=folded.nesterov, pulled=pull != 0, drifted=drift is not None)
        if pull and not kind.momentum:  # both parts in one pass: pull (w - (towards - drift / pull))
            towards = _minus(towards, drift, 1 / pull, self._model.trainable)
            kind, drift = Kind(pulled=True), None
        elif pull and towards is not None:
            drift = _minus(drift, towards, pull, self._model.trainable)
            kind = Kind(momentum=True, nesterov=folded.nesterov, pulled=True, drifted=True)
        velocity = steps.slots["momentum"] if kind.momentum else self._empty
        flat = [self._model.trainable, *(self._empty if v is None else v for v in (towards, drift)), velocity]
        targets = self._model.split(velocity) if kind.momentum else []
        return StepCall(kind, [steps.lr, pull, folded.momentum], flat, targets)

    @cached_property
    def _gradient(self) -> Tensor:
        """Where whole gradients go, for optimisers that need them."""
        return torch.empty_like(self._model.trainable)


def _pieces(examples: Examples, size: int, one_by_one: bool) -> Iterator[tuple[Examples, int]]:
    """What each call is given, and the length of its batches: all full batches, then the short last one if any is
    left; or each batch for itself."""
    if one_by_one:
        yield from ((batch, len(batch)) for batch in trees.batches(examples, size))
        return
    short = len(examples) % size
    full = len(examples) - short
    if not short:
        yield examples, size
        return
    if full:
        yield trees.take(examples, slice(0, full)), size
    yield trees.take(examples, slice(full, None)), short


def compile_epoch(tape: Tape, kind: Kind, parameters: list[Tensor]) -> NativeCall:
    """The epoch as TorchScript, for batches shaped like what was recorded."""
    try:
        unit = torch.jit.CompilationUnit(Emitter(tape, kind).source())
    except RuntimeError as error:
        raise Untraceable(f"an operator of the module has no TorchScript form: {error}") from error

    def epoch(
        data: list[Tensor], size: int, numbers: list[float], flat: Sequence[Tensor], targets: list[Tensor]
    ) -> Tensor:
        # Nothing here requires a gradient. Gradients are enabled since some operators (oneDNN's LSTM) keep what their
        # backward needs only then; operators are called below autograd since there is nothing for it to do.
        below_autograd = torch._C._AutoDispatchBelowAutograd()
        with torch.enable_grad(), below_autograd, torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            loss: Tensor = unit.epoch(data, size, numbers, parameters, tape.state_tensors, flat, targets)
            return loss

    return epoch


def _joined(decay: float, correction: Correction | None, w: Tensor) -> tuple[float, Tensor | None, Tensor | None]:
    """Weight decay and a correction as one: pull, towards, drift, cut to the weights that are trained."""
    if correction is None:
        return decay, None, None
    towards, drift = (v if v is None else v[: len(w)] for v in (correction.towards, correction.drift))
    pull = decay + correction.pull
    if decay and correction.pull and towards is not None:
        towards = towards * (correction.pull / pull)
    return pull, towards if correction.pull else None, drift


def _minus(a: Tensor | None, b: Tensor | None, scale: float, like: Tensor) -> Tensor:
    """a - scale b, where None is zero."""
    a = torch.zeros_like(like) if a is None else a
    return a if b is None else a.sub(b, alpha=scale)
