"""Convolutions of small planes by Fourier transforms, in C where there is a compiler: three to four times as fast.

`FastConvolutions` substitutes them for PyTorch's, forward and backward, in any module that runs under it. The plain
path never uses them: it is what they are tested against. They round differently (their error is of the same size), so
a run's engine names them.
"""

from ctypes import CDLL
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedavg import native

aten = torch.ops.aten
SOURCE: Final = Path(__file__).with_suffix(".c")
#: The side of the transformed planes, and the products that a pair of channels then takes in one plane.
SIDE: Final = 16
PRODUCTS: Final = 4 * 130
#: By what factor the number of products must shrink for the transforms to pay. It does not depend on the number of
#: images: batches of all sizes take the same path, so the engine's name is true of each.
SAVED: Final = 4
#: Stands in for a window, its stride, and the height and width of the output.
NOT_POOLED: Final = (0, 0, 0, 0)


class FastConvolutions(TorchDispatchMode):
    """Inside it, convolutions that fit run by Fourier transforms; `used` says whether any did."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here uses torch.compile; the default would import all of it: a second and 80 MB per process."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.convolution.default and _fits(args[0], args[1], *args[3:]):
            self.used = True
            x, w, bias, _, padding = args[:5]
            return torch.ops.fedavg.convolution(x, w, bias, padding[0])
        if func is aten.convolution_backward.default and _fits(args[1], args[2], *args[4:-1]):
            dy, x, w, _, _, padding, *_, wanted = args
            made = torch.ops.fedavg.convolution_backward(dy, x, w, padding[0], wanted[0])
            return tuple(gradient if asked else None for gradient, asked in zip(made, wanted, strict=True))
        return func(*args, **(kwargs or {}))


def _fits(x: Tensor, w: Tensor, stride: list[int], padding: list[int], *others: Any) -> bool:
    """Whether this convolution can run by Fourier transforms and is worth it; depends only on shape and machine."""
    if x.device.type != "cpu" or {x.dtype, w.dtype} != {torch.float32}:
        return False
    if x.dim() != 4 or not is_plain(w.shape, stride, padding, *others):
        return False
    height, width = x.shape[2:]
    outputs, inputs, side, _ = w.shape
    zeros = padding[0]
    if zeros >= side or max(height, width) + zeros > SIDE:
        return False
    out_height, out_width = height + 2 * zeros - side + 1, width + 2 * zeros - side + 1
    if min(out_height, out_width) < 1 or out_height * out_width * side**2 < SAVED * PRODUCTS:
        return False
    library = native.library(SOURCE)
    return library is not None and inputs % library.lanes() == outputs % library.lanes() == 0


def is_plain(
    kernels: torch.Size,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> bool:
    """Square kernels, stride 1, the same zero padding on all sides."""
    moved = stride == [1, 1] and dilation == [1, 1] and groups == 1 and not transposed
    return moved and len(kernels) == 4 and kernels[2] == kernels[3] and len(padding) == 2 and padding[0] == padding[1]


def _convolution(x: Tensor, w: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    grown = 2 * padding - w.shape[2] + 1
    shape = (x.shape[0], w.shape[0], x.shape[2] + grown, x.shape[3] + grown)
    y = torch.empty(shape, memory_format=torch.channels_last)
    tensors = (by_pixel(x), w.contiguous(), bias, y, None)
    native.call(built(), "convolve", (*sizes(x, w, padding), *NOT_POOLED, 0), tensors)
    return y


def _convolution_backward(dy: Tensor, x: Tensor, w: Tensor, padding: int, back: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the images (empty unless `back`), the kernels and the bias."""
    dx = torch.empty(x.shape if back else (0, 0, 0, 0), memory_format=torch.channels_last)
    dw, db = torch.empty(w.shape), torch.empty(len(w))
    tensors = (by_pixel(dy), None, by_pixel(x), w.contiguous(), dx if back else None, dw, db)
    native.call(built(), "convolve_backward", (*sizes(x, w, padding), *NOT_POOLED), tensors)
    return dx, dw, db


def built() -> CDLL:
    library = native.library(SOURCE)
    assert library, "_fits() said so"
    return library


def sizes(x: Tensor, w: Tensor, padding: int) -> tuple[int, ...]:
    """The sizes that the C kernels take."""
    batch, inputs, height, width = x.shape
    return batch, height, width, inputs, w.shape[0], w.shape[2], padding


def by_pixel(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _register() -> None:
    forward, backward = "fedavg::convolution", "fedavg::convolution_backward"
    torch.library.define(forward, "(Tensor x, Tensor w, Tensor? bias, int padding) -> Tensor")
    torch.library.define(
        backward, "(Tensor dy, Tensor x, Tensor w, int padding, bool back) -> (Tensor dx, Tensor dw, Tensor db)"
    )
    torch.library.impl(forward, "CPU", _convolution)
    torch.library.impl(backward, "CPU", _convolution_backward)


_register()
