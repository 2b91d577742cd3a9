"""How convolutions are translated to a program."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from fedavg.engine.instructions import pointwise, total
from fedavg.engine.tape import Op
from fedavg.engine.writer import KnownScalar, Spot, TensorView, Unsupported, Writer

aten = torch.ops.aten
#: The largest side of a kernel, as in planes.h.
WIDEST: Final = 7
#: At least as many numbers as a vector has on any machine.
VECTOR: Final = 16


def by_pixel(w: Writer, view: TensorView) -> Spot:
    """Images with contiguous channels: a copy, if the channels are not contiguous."""
    if _is_by_pixel(view):
        return view.spot
    _, channels, height, width = view.shape
    copy = TensorView(f"copy {len(w.sizes)}", 0, view.shape, (height * width * channels, 1, width * channels, channels))
    w.sizes[copy.root] = 4 * view.count
    pointwise(w, "copy", copy, view)
    return copy.spot


def _is_by_pixel(view: TensorView) -> bool:
    _, channels, height, width = view.shape
    strides = (height * width * channels, 1, width * channels, channels)
    return all(n == 1 or a == b for n, a, b in zip(view.shape, view.strides, strides, strict=True))


def _sizes(x: TensorView, weight: TensorView, y: TensorView, options: Sequence[Any]) -> tuple[int, ...]:
    """The sizes of a convolution, if there are instructions for it."""
    stride, padding, dilation, transposed, _, groups = options[:6]
    side = weight.shape[-1]
    plain = len(x.shape) == 4 and len({*stride}) == len({*padding}) == 1 and {*dilation} == {1}
    if not plain or transposed or groups != 1 or weight.shape[2] != side or side > WIDEST or padding[0] > side:
        raise Unsupported("a convolution that is not square, or dilated, transposed, grouped or wide")
    images, channels, height, width = x.shape
    _, out, rows, columns = y.shape
    return images, height, width, channels, rows, columns, out, side, stride[0], padding[0]


def _room(w: Writer, sizes: tuple[int, ...], back: str = "") -> tuple[Spot, Spot]:
    """Scratch for the zero-padded images and what the gradient of images or kernels needs as well, and for the kernels
    with their last dimension in whole vectors."""
    images, height, width, channels, rows, columns, out, side, _, padding = sizes
    frame = images * (height + 2 * padding) * (width + 2 * padding) * channels
    if back == "images":
        given = columns * side * side * channels
        frame = max(images * (rows + 2 * side) * (columns + 2 * side) * out, frame + given)
    elif back == "kernels":
        frame += images * rows * columns * (out + VECTOR)
    return w.scratch(frame), w.scratch((side * side * (channels + VECTOR) + 1) * (out + VECTOR))


def _convolution(w: Writer, op: Op) -> None:
    x, weight, y = w.view(op.args[0]), w.dense(op.args[1]), w.made(op)
    sizes = _sizes(x, weight, y, op.args[3:])
    bias = w.spot(op.args[2])
    w.add("convolve", *sizes, by_pixel(w, x), weight.spot, bias, made_by_pixel(y), *_room(w, sizes))


def made_by_pixel(y: TensorView) -> Spot:
    if not _is_by_pixel(y):
        raise Unsupported("a convolution whose channels do not come out side by side")
    return y.spot


def _convolution_back(w: Writer, op: Op) -> None:
    dy, x, weight = w.view(op.args[0]), w.view(op.args[1]), w.dense(op.args[2])
    sizes = _sizes(x, weight, dy, op.args[4:])
    gradient = by_pixel(w, dy)
    dx, dw, db = (w.out(op, place) for place in range(3))
    if dx:
        room = _room(w, sizes, "images")
        w.add("convolve_back", *sizes, gradient, weight.spot, made_by_pixel(w.view(dx)), *room)
    if dw:
        to = w.view(dw)
        w.add("kernel_gradient", *sizes, by_pixel(w, x), gradient, to.spot, to.strides, *_room(w, sizes, "kernels"))
    if db:
        total(w, w.view(db), dy, [0, 2, 3], KnownScalar(1.0))


PLANES: Final[dict[Any, Callable[[Writer, Op], None]]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_back,
}
