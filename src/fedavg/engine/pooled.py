"""A convolution, the max pooling after it and their ReLU as one operator, in C where there is a compiler.

The intermediate result is at least four times as large as the output and, with its gradient, most of what a step of a
convolutional network would write to memory; here it never leaves the cache. `fuse_pooling` finds such layers on a
tape, with ReLU and pooling in either order. It takes convolutions that already run by Fourier transforms, and those of
a first layer, on images with few channels, which are implemented here (`direct.c`).
"""

from collections.abc import Sequence
from ctypes import CDLL
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from fedavg import native
from fedavg.engine import convolution
from fedavg.engine.tape import Op, Ref, Tape

aten = torch.ops.aten
SOURCE: Final = Path(__file__).with_name("direct.c")
#: The most channels of a first layer's images: grey or colour.
FEW: Final = 3
#: The largest side of a window: the position of its maximum is stored in a byte, with one value to spare.
WIDEST: Final = 15

RELU: Final = aten.relu.default
POOL: Final = aten.max_pool2d_with_indices.default
BY_FOURIER: Final = torch.ops.fedavg.convolution.default
BY_PYTORCH: Final = aten.convolution.default
BACKWARD: Final = {
    RELU: aten.threshold_backward.default,
    POOL: aten.max_pool2d_with_indices_backward.default,
    BY_FOURIER: torch.ops.fedavg.convolution_backward.default,
    BY_PYTORCH: aten.convolution_backward.default,
}
#: What may follow a convolution, longest first. ReLU and pooling give the same result in either order.
ORDERS: Final = ((POOL, RELU), (RELU, POOL), (POOL,))


@dataclass(frozen=True)
class PooledLayer:
    """The operators of a layer, from the convolution on, and those of its gradients, down to the convolution's."""

    forward: list[Op]
    backward: list[Op]

    @property
    def pool(self) -> Op:
        return next(op for op in self.forward if op.func is POOL)

    @property
    def output(self) -> str | None:
        return self.forward[-1].outputs[0]

    @property
    def inner(self) -> list[str]:
        """The intermediate tensors: all but the output, and the gradients of the convolution."""
        made = [name for op in (*self.forward, *self.backward[:-1]) for name in op.outputs]
        return [name for name in made if name and name != self.output]

    def has(self, op: Op) -> bool:
        return any(op is own for own in (*self.forward, *self.backward))


def fuse_pooling(tape: Tape) -> Tape:
    """The same step, with one operator for each such layer, and one for its gradients."""
    ops = tape.ops
    for op in tape.ops:
        if op.func in (BY_FOURIER, BY_PYTORCH) and (layer := _layer(op, tape)):
            ops = _replaced(ops, layer, tape.forms[str(layer.output)].shape[2:])
    return replace(tape, ops=ops)


def is_pooled(op: Op) -> bool:
    return op.func is torch.ops.fedavg.pooled_convolution.default


def _layer(op: Op, tape: Tape) -> PooledLayer | None:
    for order in ORDERS:
        layer = _followed(op, order, tape)
        if layer and _alone(layer, tape) and _fits(layer, tape):
            return layer
    return None


def _followed(op: Op, order: Sequence[Any], tape: Tape) -> PooledLayer | None:
    """The layer that begins with this convolution and continues in this order, if there is one."""
    forward = [op]
    for func in order:
        after = [
            other for other in tape.ops if other.func is func and other.args[0] == Ref(str(forward[-1].outputs[0]))
        ]
        if len(after) != 1:
            return None
        forward += after
    backward = [other for own in reversed(forward) for other in tape.ops if _is_gradient_of(other, own)]
    linked = all(b.args[0] == Ref(str(a.outputs[0])) for a, b in pairwise(backward))
    return PooledLayer(forward, backward) if len(backward) == len(forward) and linked else None


def _is_gradient_of(other: Op, own: Op) -> bool:
    if other.func is not BACKWARD[own.func]:
        return False
    if own.func is RELU:
        return bool(other.args[1] == Ref(str(own.outputs[0])) and other.args[2] == 0)
    if own.func is POOL:
        return bool(other.args[-1] == Ref(str(own.outputs[1])))
    return other.args[1:3] == own.args[:2]


def _alone(layer: PooledLayer, tape: Tape) -> bool:
    """Nothing else reads the intermediate tensors or writes to them."""
    inner = set(layer.inner)
    asked = {tape.loss, *tape.gradients} & inner
    return not asked and not any(inner & set(op.refs) for op in tape.ops if not layer.has(op))


def _fits(layer: PooledLayer, tape: Tape) -> bool:
    first = layer.forward[0]
    if not _is_plain(*layer.pool.args[1:]):
        return False
    if first.func is BY_FOURIER:
        return True
    x, w = (tape.forms[arg.name] for arg in first.args[:2])
    y = tape.forms[str(layer.output)]
    return (
        x.dtype == w.dtype == torch.float32
        and convolution.is_plain(w.shape, *first.args[3:])
        and w.shape[1] <= FEW
        and y.is_contiguous(memory_format=torch.channels_last)  # the kernel's layout, which later operators rely on
        and not layer.backward[-1].args[-1][0]  # the gradient of the images: not needed for a first layer
        and (built := native.library(SOURCE)) is not None
        and w.shape[0] % built.lanes() == 0
    )


def _is_plain(
    window: list[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> bool:
    """Square windows, equal strides, no padding. A partial window at the end may count or not (`ceil_mode`)."""
    square = len({*window}) == 1 and window[0] <= WIDEST and len({*stride}) <= 1
    return square and {*padding} == {0} and {*dilation} == {1}


def _replaced(ops: list[Op], layer: PooledLayer, size: Sequence[int]) -> list[Op]:
    """Replaces the layer's operators with two: each takes the place of the last operator that it replaces.

    `size` is the height and width of the output.
    """
    first, last, gradients = layer.forward[0], layer.forward[-1], layer.backward[-1]
    x, w, bias = first.args[:3]
    by_fourier = first.func is BY_FOURIER
    padding = first.args[3] if by_fourier else first.args[4][0]
    relu = any(op.func is RELU for op in layer.forward)
    window = layer.pool.args[1][0]
    stride = layer.pool.args[2][0] if layer.pool.args[2:] and layer.pool.args[2] else window
    origin = f"{layer.output}_origin"
    options = (padding, window, stride, list(size))
    forward = Op(torch.ops.fedavg.pooled_convolution.default, (x, w, bias, *options, relu), {}, (layer.output, origin))
    dy, back = layer.backward[0].args[0], by_fourier and gradients.args[-1]
    backward = Op(
        torch.ops.fedavg.pooled_convolution_backward.default,
        (dy, Ref(origin), x, w, *options, back),
        {},
        gradients.outputs,
    )
    kept = [forward if op is last else backward if op is gradients else op for op in ops]
    return [op for op in kept if not layer.has(op)]


def _pooled_convolution(
    x: Tensor, w: Tensor, bias: Tensor | None, padding: int, window: int, stride: int, size: list[int], relu: bool
) -> tuple[Tensor, Tensor]:
    """The pooled images, and the pixel of the window that each value came from (`pooling.h`)."""
    y = torch.empty((x.shape[0], w.shape[0], *size), memory_format=torch.channels_last)
    origin = torch.empty_like(y, dtype=torch.uint8)
    numbers = (*convolution.sizes(x, w, padding), window, stride, *size, int(relu))
    native.call(_built(x), "convolve", numbers, (convolution.by_pixel(x), w.contiguous(), bias, y, origin))
    return y, origin


def _pooled_convolution_backward(
    dy: Tensor,
    origin: Tensor,
    x: Tensor,
    w: Tensor,
    padding: int,
    window: int,
    stride: int,
    size: list[int],
    back: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the images (empty unless `back`), the kernels and the bias."""
    dx = torch.empty(x.shape if back else (0, 0, 0, 0), memory_format=torch.channels_last)
    dw, db = torch.empty(w.shape), torch.empty(len(w))
    numbers = (*convolution.sizes(x, w, padding), window, stride, *size)
    tensors = (convolution.by_pixel(dy), origin, convolution.by_pixel(x), w.contiguous(), dx if back else None, dw, db)
    native.call(_built(x), "convolve_backward", numbers, tensors)
    return dx, dw, db


def _built(x: Tensor) -> CDLL:
    """The direct kernel for images with few channels, otherwise the one by Fourier transforms."""
    library = native.library(SOURCE) if x.shape[1] <= FEW else convolution.built()
    assert library, "_fits() said so"
    return library


def _register() -> None:
    forward, backward = "fedavg::pooled_convolution", "fedavg::pooled_convolution_backward"
    options = "int padding, int window, int stride, int[] size"
    torch.library.define(
        forward, f"(Tensor x, Tensor w, Tensor? bias, {options}, bool relu) -> (Tensor y, Tensor origin)"
    )
    torch.library.define(
        backward,
        f"(Tensor dy, Tensor origin, Tensor x, Tensor w, {options}, bool back) -> (Tensor dx, Tensor dw, Tensor db)",
    )
    torch.library.impl(forward, "CPU", _pooled_convolution)
    torch.library.impl(backward, "CPU", _pooled_convolution_backward)


_register()
