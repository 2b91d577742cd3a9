"""How a module wants its tensors: the memory layout of images, and the type of targets, found by trying.

Images are channels-last, where pooling is ten times faster on the CPU and convolutions as fast; a module that cannot
take that (`x.view(-1, 400)`) gets PyTorch's default layout. Targets stay as they are if the loss takes them; otherwise
bool and integers are tried as int64 (classes), then as float32 (binary and multi-label losses). No value changes.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from fedavg import trees
from fedavg.trees import Tree


@dataclass(frozen=True)
class Fit:
    """What is done to a batch before the module sees it."""

    channels_last: bool = True
    #: The type that bool and integer targets are converted to; None: they stay.
    targets: torch.dtype | None = None


#: The forms to try, best first. The second leaves everything as it is.
CANDIDATES: Final = tuple(
    Fit(channels_last, targets) for targets in (None, torch.int64, torch.float32) for channels_last in (True, False)
)
AS_IT_IS: Final = CANDIDATES[1]


def input_form(x: Tree, fit: Fit) -> Tree:
    """The module's input in the layout that it takes; float64 becomes float32, the type of the weights."""
    return trees.changed(x, _channels_last if fit.channels_last else _as_pytorch)


def target_form(y: Tree, fit: Fit) -> Tree:
    def form(leaf: Tensor) -> Tensor:
        if leaf.is_floating_point():
            return _single(leaf).contiguous()
        return (leaf if fit.targets is None else leaf.to(fit.targets)).contiguous()

    return trees.changed(y, form)


def _channels_last(x: Tensor) -> Tensor:
    """Images (B, C, H, W) in the memory order B, H, W, C. A module sees the same shape and values."""
    x = _single(x)
    if x.dim() != 4:
        return x.contiguous()
    if x.shape[1] > 1 and x.is_contiguous(memory_format=torch.channels_last):
        return x
    return torch.empty_like(x, memory_format=torch.channels_last).copy_(x)


def _as_pytorch(x: Tensor) -> Tensor:
    return _single(x).contiguous()


def _single(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float64 else x
