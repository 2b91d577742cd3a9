"""The fast path: a local epoch of any module as one native call.

The gradients of one batch are recorded as a flat list of ATen operators, once for batches of every length
(`lengths.py`), the optimiser's step is folded into it (`emit.py`), and the whole epoch is emitted as TorchScript
source, which PyTorch's own C++ interpreter runs without Python or autograd in between. The gains, largest first: no
Python between operators; no gradient buffer for a weight whose gradient is a matrix product (`W -= lr * A @ B` is one
BLAS call); no optimiser pass.
Convolutions that fit run by Fourier transforms (`convolution.py`), fused with the pooling after them (`pooled.py`); a
large layer's step is taken during its backward pass (`dense.py`).

For an optimiser that needs whole gradients (Adam, clipping, a user's own), the same native code makes them, batch by
batch.
"""

from functools import partial
from typing import Any, Final, final

import torch
from torch import Tensor

from fedavg import trees
from fedavg.engine.convolution import FastConvolutions
from fedavg.engine.dense import fuse_steps, is_fused
from fedavg.engine.emit import Emitter, Kind
from fedavg.engine.lengths import Recording
from fedavg.engine.model import Model
from fedavg.engine.native_epoch import Arena, native_epoch
from fedavg.engine.pieces import Epoch, Piece, single
from fedavg.engine.pooled import fuse_pooling, is_pooled
from fedavg.engine.step_calls import StepCalls
from fedavg.engine.tape import LooksAtData, Tape, Untraceable, as_a_compiler, record
from fedavg.optimizers.optimizer import Steps, step_with
from fedavg.types import Examples

#: A batch of this size can be compared with a shorter one that still has more than one example: with only one, layers
#: may make other tensors.
ENOUGH: Final = 3


@final
class GraphEpochs:
    """Local epochs of one model: compiles and caches one native function per shape of examples and kind of step.

    It serves batches of every length if the module does the same for each; otherwise there is one per length.
    """

    def __init__(self, model: Model) -> None:
        #: Replaces PyTorch's own kernels, in evaluation too.
        self.kernels = FastConvolutions()
        #: The kinds of layers that run on our own kernels.
        self.native: set[str] = set()
        self._model = model
        self._parameters = [p.detach() for p in model.parameters.values()]
        self._calls = StepCalls(model)
        self._compiled: dict[Any, Epoch] = {}
        #: By the shape of examples: one step for all lengths; None if there is none.
        self._recordings: dict[Any, Recording | None] = {}
        self._arena = Arena()
        #: The number of compiled native functions.
        self.compilations = 0

    def epoch_for(self, piece: Piece, steps: Steps) -> Epoch:
        """The native function for such examples and steps; compiled at first use."""
        return self.prepare(piece, self._calls.of(steps).kind)

    def prepare(self, piece: Piece, kind: Kind = Kind()) -> Epoch:  # noqa: B008
        shape = tuple((leaf.shape[1:], leaf.dtype) for leaf in piece.leaves)
        if shape not in self._recordings:
            both = self._twice(_first_batch(piece))
            self._recordings[shape] = both if both.joined() else None
        known = self._recordings[shape]
        key = (kind, shape, None if known else piece.batch)
        if key not in self._compiled:
            self._compiled[key] = self._compile(known or self._once(_first_batch(piece)), kind)
            self.compilations += 1
        return self._compiled[key]

    def _once(self, batch: Examples) -> Recording:
        return Recording([self._recorded(batch)], [len(batch)])

    def _twice(self, batch: Examples) -> Recording:
        if len(batch) < ENOUGH:
            batch = Examples(*(trees.joined([tree] * ENOUGH) for tree in (batch.x, batch.y)))
        both = [batch, trees.take(batch, slice(0, len(batch) - 1))]
        return Recording([self._recorded(examples) for examples in both], [len(examples) for examples in both])

    def _compile(self, recording: Recording, kind: Kind) -> Epoch:
        epoch = self._native(recording, kind)
        return OwnSteps(epoch, self._model.trainable, self._calls.gradient) if kind.whole else epoch

    def _native(self, recording: Recording, kind: Kind) -> Epoch:
        """By our own kernels if every operator has one, otherwise as TorchScript."""
        whole = recording.joined()
        assert whole, "looked at when it was recorded"
        tape = recording.joined(fuse_steps) or whole if kind.steps_weights and self._on_cpu else whole
        given = (tape, kind, self._parameters, self._calls, self._arena, recording.lengths[0])
        own = native_epoch(*given) if self._on_cpu else None
        if own:
            self.native.add("steps")
            return own
        tape = recording.joined(partial(self._fused, kind=kind)) or whole
        if self.kernels.used or any(map(is_pooled, tape.ops)):
            self.native.add("convolution")
        if any(map(is_fused, tape.ops)):
            self.native.add("dense layers")
        return compile_epoch(tape, kind, self._parameters, self._calls)

    def one_by_one(self) -> None:
        """From now on, record each length of batches separately."""
        self._recordings = dict.fromkeys(self._recordings)
        self._compiled = {}

    def _recorded(self, batch: Examples) -> Tape:
        """Record a step; the model is restored afterwards."""
        with self._model.unchanged(), torch.random.fork_rng(devices=[]):
            try:
                return record(self._model, batch, self.kernels)
            except LooksAtData:
                with as_a_compiler():
                    return record(self._model, batch, self.kernels)

    def _fused(self, tape: Tape, kind: Kind) -> Tape:
        """The same step, with our own operators where they exist."""
        if not self._on_cpu:
            return tape
        tape = fuse_pooling(tape)
        return fuse_steps(tape) if kind.steps_weights else tape

    @property
    def _on_cpu(self) -> bool:
        return self._model.vector.device.type == "cpu"


@final
class OwnSteps:
    """Steps of an optimiser that needs the whole gradient, which native code makes batch by batch."""

    def __init__(self, gradients: Epoch, weights: Tensor, gradient: Tensor) -> None:
        """`gradients` writes a batch's gradient to `gradient`, shape (P,)."""
        self._gradients, self._weights, self._gradient = gradients, weights, gradient

    def __call__(self, piece: Piece, steps: Steps) -> float:
        total = 0.0
        for batch in trees.batches(piece.examples, piece.batch):
            total = single(total + self._gradients(Piece(batch, piece.batch), steps))
            step_with(steps, self._weights, self._gradient)
        return total


def _first_batch(piece: Piece) -> Examples:
    return trees.take(piece.examples, slice(0, piece.batch))


def compile_epoch(tape: Tape, kind: Kind, parameters: list[Tensor], calls: StepCalls) -> Epoch:
    """The epoch as TorchScript, for batches shaped like the recorded one."""
    try:
        unit = torch.jit.CompilationUnit(Emitter(tape, kind).source())
    except RuntimeError as error:
        raise Untraceable(f"an operator of the module has no TorchScript form: {error}") from error

    def epoch(piece: Piece, steps: Steps) -> float:
        told = calls.of(steps)
        kept = (parameters, tape.state_tensors, told.flat, told.targets)
        # Nothing here requires a gradient. Gradients are enabled because some operators (oneDNN's LSTM) save what their
        # backward needs only then; operators are called below autograd because it has nothing to do.
        below_autograd = torch._C._AutoDispatchBelowAutograd()
        with torch.enable_grad(), below_autograd, torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return float(unit.epoch(piece.leaves, piece.batch, told.numbers, *kept))

    return epoch
