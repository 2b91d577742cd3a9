"""`Task`: what is learned. A PyTorch module, its loss, its metrics; it knows nothing of clients or rounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedavg import trees
from fedavg.types import Tree

Metric = Callable[[Tensor, Tensor], Tensor]


def accuracy(output: Tensor, y: Tensor) -> Tensor:
    """1 where the most likely class, over dimension 1, is the right one."""
    return output.argmax(1) == y


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y, reduction="none")


def as_float(x: Tensor) -> Tensor:
    """Integers of images become floats in [0, 1]; floats and token ids (int64) pass as they are."""
    return x / 255 if x.dtype == torch.uint8 else x


def all_as_float(x: Tree) -> Tree:
    return trees.changed(x, as_float)


@dataclass(frozen=True)
class Task:
    """A learning problem that any fleet can train and any data of the right form can feed.

    `build` makes the module; its parameters are drawn from PyTorch's generator, which is seeded before the call.
    The module is called as `module(x)`, `module(*x)` or `module(**x)`, whichever x is: a tensor, a tuple or a dict of
    them. `loss(output, y)`, with whatever the module returns, is the mean over the batch. Each metric gives one value
    per prediction (a 1-D tensor); its mean over the whole set is reported.

    `prepare` turns raw `x` into the module's input; `augment`, where given, does it in training, for all examples of a
    local epoch at once, with its own generator. `collate`, where given, first gives the raw x and y of each batch
    another form: texts of unlike lengths are padded (`fedavg.padded`), short ones are put two in a row. How many rows a
    batch then has does not matter, since the loss is a mean.
    """

    name: str
    build: Callable[[], nn.Module]
    loss: Callable[[Any, Any], Tensor] = F.cross_entropy
    metrics: Mapping[str, Metric] = field(default_factory=lambda: {"accuracy": accuracy, "loss": cross_entropy})
    prepare: Callable[[Any], Any] = all_as_float
    augment: Callable[[Any, np.random.Generator], Any] | None = None
    collate: Callable[[Any, Any], tuple[Any, Any]] | None = None
    #: Examples evaluated at once: large enough for the kernels, small enough for the cache.
    eval_batch: int = 1000

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a task needs a name")
