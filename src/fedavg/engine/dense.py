"""Fully connected layers with many weights: backward and SGD step as one operator, in C where there is a compiler.

With the small batches of federated learning such a layer is bound by the time to read its weights from memory. Two
products read them twice, for the gradient of the layer's input and for the step; here they are read once.
`fuse_steps` finds such layers on a tape. They round differently, so a run's engine names them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from fedavg import native
from fedavg.engine.tape import Op, Ref, Tape

aten = torch.ops.aten
SOURCE: Final = Path(__file__).with_suffix(".c")
#: More weights than fit a core's cache; with fewer, calling this costs more than it saves.
MANY: Final = 2**18
#: The most rows of a batch for which it is faster; with more, PyTorch's products are as fast. Backward as in dense.h.
ROWS_FORWARD: Final = 32
ROWS_BACKWARD: Final = 64

MM: Final = aten.mm.default
ADDMM: Final = aten.addmm.default
T: Final = aten.t.default


@dataclass(frozen=True)
class DenseLayer:
    """A layer's weight w, its transpose `turned`, and the operators for y = x w', dx = dy w and the gradient dy' x."""

    weight: str
    turned: Op
    forward: Op
    backward: Op
    turned_dy: Op
    gradient: Op

    @property
    def x(self) -> Ref:
        return self.forward.args[-2]  # type: ignore[no-any-return]

    @property
    def dy(self) -> Ref:
        return self.backward.args[0]  # type: ignore[no-any-return]


def fuse_steps(tape: Tape) -> Tape:
    """The same SGD step, with one operator for the backward of such a layer; its weight's gradient is never made.

    The new operator replaces the one that made the gradient of the layer's input, and steps the weight there.
    """
    layers = [layer for name in tape.parameters if (layer := _layer(name, tape))]
    ops, gradients = tape.ops, list(tape.gradients)
    for layer in layers:
        ops = _replaced(ops, layer)
        gradients[tape.parameters.index(layer.weight)] = None
    return replace(tape, ops=ops, gradients=gradients)


def is_fused(op: Op) -> bool:
    return op.func is torch.ops.fedavg.dense_step.default


def _layer(weight: str, tape: Tape) -> DenseLayer | None:
    """The layer of a weight that is large enough and used once, as in `Linear`: forward first, then backward."""
    made = tape.gradients[tape.parameters.index(weight)]
    readers = _readers(weight, tape)
    if made is None or not _fits(tape.forms[weight]) or [op.func for op in readers] != [T, MM]:
        return None
    turned, backward = readers
    forward, gradient = _readers(_out(turned).name, tape), _maker(made, tape)
    turned_dy = _maker(gradient.args[0].name, tape) if gradient and gradient.func is MM else None
    if len(forward) != 1 or gradient is None or turned_dy is None:
        return None
    layer = DenseLayer(weight, turned, forward[0], backward, turned_dy, gradient)
    return layer if _is_linear(layer, tape) and _alone(layer, tape) else None


def _readers(name: str, tape: Tape) -> list[Op]:
    return [op for op in tape.ops for read in op.refs if read == name]


def _maker(name: str, tape: Tape) -> Op | None:
    return next((op for op in tape.ops if name in op.outputs), None)


def _out(op: Op) -> Ref:
    return Ref(str(op.outputs[0]))


def _is_linear(layer: DenseLayer, tape: Tape) -> bool:
    """Whether these operators are y = x w' (+ bias), dx = dy w and the gradient dy' x."""
    forward = layer.forward
    if forward.func is ADDMM:
        plain = not forward.kwargs and tape.forms[forward.args[0].name].dim() == 1
    else:
        plain = forward.func is MM
    return (
        plain
        and forward.args[-1] == _out(layer.turned)
        and layer.backward.args[1] == Ref(layer.weight)
        and (layer.turned_dy.func, layer.turned_dy.args[0]) == (T, layer.dy)
        and layer.gradient.args[1] == layer.x
    )


def _fits(weight: Tensor) -> bool:
    if weight.dim() != 2 or weight.numel() < MANY or not weight.is_contiguous():
        return False
    built = native.library(SOURCE)
    return built is not None and weight.shape[0] % built.outputs() == weight.shape[1] % built.lanes() == 0


def _alone(layer: DenseLayer, tape: Tape) -> bool:
    """Nothing else reads what is removed, and nothing writes to what is read."""
    gradient = _out(layer.gradient).name
    others = len(_readers(_out(layer.turned_dy).name, tape)) > 1 or _readers(gradient, tape)
    mutated = {tape.roots[name] for op in tape.ops for name in op.written}
    read = {tape.roots[ref.name] for ref in (layer.x, layer.dy, Ref(layer.weight))}
    return not others and [tape.loss, *tape.gradients].count(gradient) == 1 and not read & mutated


def _replaced(ops: list[Op], layer: DenseLayer) -> list[Op]:
    bias = layer.forward.args[0] if layer.forward.func is ADDMM else None
    weight = Ref(layer.weight)
    forward = Op(torch.ops.fedavg.dense.default, (layer.x, weight, bias), {}, layer.forward.outputs)
    arguments = (layer.dy, layer.x, weight, Ref("lr"))
    backward = Op(torch.ops.fedavg.dense_step.default, arguments, {}, layer.backward.outputs)
    gone = (layer.turned, layer.turned_dy, layer.gradient)
    kept = [op for op in ops if not any(op is other for other in gone)]
    return [forward if op is layer.forward else backward if op is layer.backward else op for op in kept]


def _dense(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    if len(x) > ROWS_FORWARD:
        return torch.mm(x, w.t()) if bias is None else torch.addmm(bias, x, w.t())
    y = torch.empty(len(x), len(w))
    _call("dense", x, w, (x.contiguous(), w, bias, y))
    return y


def _dense_step(dy: Tensor, x: Tensor, w: Tensor, lr: float) -> Tensor:
    """The gradient of x; then the step of w."""
    if len(x) > ROWS_BACKWARD:
        dx = torch.mm(dy, w)
        w.addmm_(dy.t(), x, alpha=-lr)
        return dx
    dx = torch.empty(x.shape)
    _call("dense_step", x, w, (dy.contiguous(), dy.contiguous() * -lr, x.contiguous(), w, dx))
    return dx


def _call(name: str, x: Tensor, w: Tensor, tensors: tuple[Tensor | None, ...]) -> None:
    built = native.library(SOURCE)
    assert built, "_fits() said so"
    native.call(built, name, (*x.shape, len(w)), tensors)


def _register() -> None:
    torch.library.define("fedavg::dense", "(Tensor x, Tensor w, Tensor? bias) -> Tensor")
    torch.library.define("fedavg::dense_step", "(Tensor dy, Tensor x, Tensor(a!) w, float lr) -> Tensor")
    torch.library.impl("fedavg::dense", "CPU", _dense)
    torch.library.impl("fedavg::dense_step", "CPU", _dense_step)


_register()
