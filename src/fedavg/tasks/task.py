"""`Task`: what is learned. A PyTorch module, its loss, its metrics; it knows nothing of clients or rounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedavg import trees
from fedavg.adapters import Adapters
from fedavg.errors import TaskError
from fedavg.metrics import Metric, MetricsGiven, by_name, default_metrics
from fedavg.specs import Pluggable
from fedavg.trees import Tree


def as_float(x: Tensor) -> Tensor:
    """Image bytes become floats in [0, 1]; floats and token ids (int64) are unchanged."""
    return x / 255 if x.dtype == torch.uint8 else x


def all_as_float(x: Tree) -> Tree:
    return trees.changed(x, as_float)


@dataclass(frozen=True)
class Task(Pluggable):
    """A learning problem that any fleet can train and any data of the right form can feed.

    `build` makes the module; its parameters are drawn from PyTorch's generator, which is seeded before the call.
    The module is called as `module(x)`, `module(*x)` or `module(**x)`, for a tensor, a tuple or a dict x. `loss(output,
    y)`, where `output` is whatever the module returns, is the mean over the batch. `metrics` are what models are judged
    by: metrics, their names (`"f1:10"`), or a dict of them under your own names, which may also hold functions that
    return one value per prediction. The default is the loss, and accuracy if the loss is one of PyTorch's over classes.

    `prepare` turns raw `x` into the module's input; `augment`, if given, replaces it in training, for all examples of a
    local epoch at once, with its own generator. `collate`, if given, first puts the raw x and y of each batch into
    another form: texts are padded (`fedavg.padded`), or short ones put two in a row. How many rows a batch then has
    does not matter, since the loss is a mean.

    `classes` are the names of the labels, in the order of their numbers: `("cat", "dog")` makes cat 0 and dog 1
    wherever labels are words. Without them a device refuses words: it does not know which label others call 0.

    `head` names the parts of the module that are new, such as "classifier": with adapters these are trained in full,
    while the pretrained parts stay frozen.

    >>> from torch import nn
    >>> list(Task("lines", lambda: nn.Linear(3, 1), loss=nn.functional.mse_loss).judged_by)
    ['loss']
    """

    kind = "task"

    name: str
    build: Callable[[], nn.Module]
    loss: Callable[[Any, Any], Tensor] = F.cross_entropy
    metrics: MetricsGiven | None = None
    prepare: Callable[[Any], Any] = all_as_float
    augment: Callable[[Any, np.random.Generator], Any] | None = None
    collate: Callable[[Any, Any], tuple[Any, Any]] | None = None
    #: Examples evaluated at once: large enough for the kernels, small enough for the cache.
    eval_batch: int = 1000
    #: The names of the labels, in the order of their numbers. The field was added later: its default value leaves the
    #: digest of a plan unchanged.
    classes: Sequence[str] | None = field(default=None, metadata={"later": True})
    head: str | Sequence[str] = field(default=(), metadata={"later": True})
    #: The adapters that the plan adds to the module; a task itself has none.
    adapters: Adapters | None = field(default=None, metadata={"bound": True, "later": True})

    @classmethod
    def registry(cls) -> Mapping[str, "Task"]:
        from fedavg.tasks import TASKS

        return TASKS

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TaskError(f"name: got {self.name!r}; expected a text, as in Task('mine', ...)")
        if isinstance(self.build, nn.Module):
            raise TaskError(
                f"build: got a module ({type(self.build).__name__}); expected a function that makes a new one at each "
                f"call, as in Task({self.name!r}, lambda: {type(self.build).__name__}(...))"
            )
        for what in ("build", "loss", "prepare"):
            if not callable(getattr(self, what)):
                raise TaskError(f"{what}: got {getattr(self, what)!r}; expected a function")
        if self.classes is not None:
            object.__setattr__(self, "classes", _checked_classes(self.classes))
        object.__setattr__(self, "head", (self.head,) if isinstance(self.head, str) else tuple(self.head))
        _ = self.judged_by  # an invalid metric fails here, not in a worker

    @cached_property
    def judged_by(self) -> Mapping[str, Metric]:
        """The metrics by name, bound to the loss; the first is the most important."""
        return default_metrics(self.loss) if self.metrics is None else by_name(self.metrics, self.loss)


def _checked_classes(classes: Sequence[str]) -> tuple[str, ...]:
    names = tuple(classes) if not isinstance(classes, str) else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise TaskError(f"classes: got {classes!r}; expected the names of the labels, each once, as in ('cat', 'dog')")
    return names
