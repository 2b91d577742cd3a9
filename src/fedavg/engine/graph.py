"""The fast path: a local epoch of any module as one native call.

One step is recorded per batch shape as a flat list of ATen operators, the SGD update is folded into it, and the
whole epoch is emitted as TorchScript source, which PyTorch's own C++ interpreter runs without Python or autograd in
between. What is gained, in order of size: no Python between operators; no gradient buffer for a weight whose gradient
is a matrix product (`W -= lr * A @ B` is one BLAS call); no optimiser pass. Convolutions that fit are done by
Fourier transforms (`convolution.py`), and together with the pooling after them (`pooled.py`); a large layer's step is
taken while its gradient is passed on (`dense.py`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedavg.engine.convolution import FastConvolutions
from fedavg.engine.dense import fuse_steps, is_fused
from fedavg.engine.model import Model
from fedavg.engine.pooled import fuse_pooling, is_pooled
from fedavg.engine.tape import Op, Ref, Tape, Untraceable, record

aten = torch.ops.aten
#: Views of a parameter stay valid while it is updated in place, so they are made once, before the loop over batches.
VIEWS = {aten.t.default, aten.transpose.int, aten.view.default, aten.permute.default, aten.unsqueeze.default}
#: Up to so many rows are added to a bias one by one, which rounds each to the bias's last digit. Of more, as a language
#: model has, the sum is taken first: the time of one more operator is little there, and the error would grow.
FEW_ROWS = 64

Epoch = Callable[[Tensor, Tensor, int, float, list[Tensor], list[Tensor]], Tensor]


class GraphEpoch:
    """`sgd_epoch` for one model: compiles one native function per batch shape and keeps it."""

    def __init__(self, model: Model) -> None:
        #: What stands in for PyTorch's own kernels, in evaluation too.
        self.kernels = FastConvolutions()
        #: The kinds of layers that have kernels of our own.
        self.native: set[str] = set()
        self._model = model
        self._parameters = [p.detach() for p in model.parameters.values()]
        self._compiled: dict[tuple[torch.Size, torch.Size], tuple[Epoch, list[Tensor]]] = {}

    def __call__(self, x: Tensor, y: Tensor, batch: int, lr: float) -> Tensor:
        """One pass over (x, y) in order, in batches (the last may be short); returns the sum of the losses."""
        full = len(y) - len(y) % batch
        total = torch.zeros((), device=x.device)
        if full:
            total += self._run(x[:full], y[:full], batch, lr)
        if full < len(y):
            total += self._run(x[full:], y[full:], len(y) - full, lr)
        return total

    def prepare(self, x: Tensor, y: Tensor) -> None:
        """Compile for batches shaped like (x, y), if that has not been done."""
        if (x.shape, y.shape) not in self._compiled:
            with (
                self._model.unchanged(),
                torch.random.fork_rng(devices=[]),
            ):  # recording takes a step that does not count
                tape = self._recorded(x, y)
                self._compiled[x.shape, y.shape] = compile_epoch(tape), tape.state_tensors

    def _recorded(self, x: Tensor, y: Tensor) -> Tape:
        """A step, with kernels of our own where there are any."""
        tape = record(self._model, x, y, self.kernels)
        if x.device.type == "cpu":
            tape = fuse_steps(fuse_pooling(tape))
        if self.kernels.used or any(map(is_pooled, tape.ops)):
            self.native.add("convolution")
        if any(map(is_fused, tape.ops)):
            self.native.add("dense layers")
        return tape

    def _run(self, x: Tensor, y: Tensor, batch: int, lr: float) -> Tensor:
        self.prepare(x[:batch], y[:batch])
        native, state = self._compiled[x[:batch].shape, y[:batch].shape]
        # Nothing here requires a gradient. Gradients are enabled since some operators (oneDNN's LSTM) keep what their
        # backward needs only then; operators are called below autograd since there is nothing for it to do.
        below_autograd = torch._C._AutoDispatchBelowAutograd()
        with torch.enable_grad(), below_autograd, torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return native(x, y, batch, lr, self._parameters, state)


def compile_epoch(tape: Tape) -> Epoch:
    """The native epoch for batches shaped like what was recorded."""
    try:
        unit = torch.jit.CompilationUnit(Emitter(tape).source())
    except RuntimeError as error:
        raise Untraceable(f"an operator of the module has no TorchScript form: {error}") from error
    epoch: Epoch = unit.epoch
    return epoch


class Emitter:
    """Writes a tape as the TorchScript source of a function `epoch`."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._maker = {name: op for op in tape.ops for name in op.outputs if name}
        self._uses = [name for op in tape.ops for name in op.refs] + [tape.loss, *filter(None, tape.gradients)]
        self._mutated = {tape.roots[name] for op in tape.ops for name in op.written}
        self._folded: set[str] = set()
        self._ones: set[int] = set()

    def source(self) -> str:
        updates = [self._update(p, g) for p, g in zip(self._tape.parameters, self._tape.gradients, strict=True) if g]
        before: list[str] = []
        inside: list[str] = []
        fixed = set(self._tape.parameters)
        for op in self._tape.ops:
            if self._folded & set(filter(None, op.outputs)):
                continue
            if self._starts_backward(op):
                before.append(f"{op.outputs[0]} = torch.ones([], device=x_all.device)")
            elif op.func in VIEWS and op.args[0].name in fixed:
                fixed |= set(filter(None, op.outputs))
                before.extend(_lines(op))
            else:
                inside.extend(_lines(op))
        return "\n".join(
            [
                "def epoch(x_all, y_all, batch: int, lr: float, params: List[Tensor], state: List[Tensor]):",
                *(f"    {name} = params[{i}]" for i, name in enumerate(self._tape.parameters)),
                *(f"    {name} = state[{i}]" for i, name in enumerate(self._tape.state)),
                *(f"    ones_{rows} = torch.ones([{rows}], device=x_all.device)" for rows in sorted(self._ones)),
                *(f"    {line}" for line in before),
                "    total = torch.zeros([], device=x_all.device)",
                "    for x, y in zip(x_all.split(batch), y_all.split(batch)):",
                *(f"        {line}" for line in inside),
                *(f"        {line}" for line in updates),
                f"        total.add_({self._tape.loss}, alpha=batch)",
                "    return total\n",
            ]
        )

    def _starts_backward(self, op: Op) -> bool:
        """The gradient of the loss by itself: the same 1 in every step."""
        is_one = op.func is aten.ones_like.default and op.args[0].name == self._tape.loss
        return is_one and not self._tape.forms[self._tape.loss].shape and op.outputs[0] not in self._mutated

    def _update(self, parameter: str, gradient: str) -> str:
        """The line that takes the SGD step of one parameter. Updates stand last, when nothing reads the old values."""
        return (
            self._product(parameter, gradient)
            or self._row_sum(parameter, gradient)
            or (f"{parameter}.sub_({gradient}, alpha=lr)")
        )

    def _product(self, parameter: str, gradient: str) -> str:
        """Where the gradient is a matrix product, it is added to the weight as it is computed: W -= lr A B."""
        chain = self._chain(gradient, aten.t.default)
        if not self._foldable(chain, aten.mm.default):
            return ""
        self._folded.update(chain)
        a, b = (factor.name for factor in self._maker[chain[-1]].args)
        if len(chain) % 2 == 0:  # an odd number of transposes stands between the product and the gradient
            a, b = f"{b}.t()", f"{a}.t()"
        return f"{parameter}.addmm_({a}, {b}, alpha=-lr)"

    def _row_sum(self, parameter: str, gradient: str) -> str:
        """Where it is the sum over the few rows of a matrix, as for a bias, that is a product with ones."""
        chain = self._chain(gradient, aten.view.default)
        if not self._foldable(chain, aten.sum.dim_IntList) or self._maker[chain[-1]].args[1] != [0]:
            return ""
        matrix = self._maker[chain[-1]].args[0].name
        rows, *columns = self._tape.forms[matrix].shape
        if torch.Size(columns) != self._tape.forms[parameter].shape or len(columns) != 1 or rows > FEW_ROWS:
            return ""
        self._folded.update(chain)
        self._ones.add(rows)
        return f"{parameter}.addmv_({matrix}.t(), ones_{rows}, alpha=-lr)"

    def _chain(self, name: str, passed: Any) -> list[str]:
        """The gradient, and what it is a view of by one kind of operator, back to where it was computed."""
        chain = [name]
        while name in self._maker and self._maker[name].func is passed:
            name = self._maker[name].args[0].name
            chain.append(name)
        return chain

    def _foldable(self, chain: list[str], computed_by: Any) -> bool:
        """Computed so, for this update alone, from what nobody overwrites before the end of the step."""
        maker = self._maker.get(chain[-1])
        return (
            maker is not None
            and maker.func is computed_by
            and all(self._uses.count(name) == 1 for name in chain)
            and not any(self._tape.roots[factor] in self._mutated for factor in maker.refs)
        )


def _lines(op: Op) -> list[str]:
    """The call, and a line for each of several outputs."""
    if len(op.outputs) == 1:
        return [f"{op.outputs[0]} = {call_source(op)}"]
    made = [(place, name) for place, name in enumerate(op.outputs) if name]
    several = f"several_{made[0][1]}"
    return [f"{several} = {call_source(op)}", *(f"{name} = {several}[{place}]" for place, name in made)]


def call_source(op: Op) -> str:
    """An operator call as TorchScript source."""
    schema = op.func._schema
    types = {argument.name: argument.type for argument in schema.arguments}
    words = [_word(value, kind) for value, kind in zip(op.args, types.values(), strict=False)]
    words += [f"{key}={_word(value, types[key])}" for key, value in op.kwargs.items()]
    return f"torch.ops.{schema.name.replace('::', '.')}({', '.join(words)})"


def _word(value: Any, kind: Any) -> str:
    """An argument as TorchScript source; `kind` is its type in the operator's schema."""
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, list | tuple):
        items = ", ".join(_word(item, kind) for item in value)
        return f"[{items}]" if value and None not in value else f"torch.jit.annotate({_list_type(kind)}, [{items}])"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float):
        return f"float('{value}')"
    return repr(value)


def _list_type(kind: Any) -> str:
    """The TorchScript name of a list type, without the Optional around it."""
    text = str(kind)
    while text.startswith("Optional["):
        text = text[len("Optional[") : -1]
    return text
