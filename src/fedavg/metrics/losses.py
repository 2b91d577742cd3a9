"""The task's own loss as a metric, weighted by what it is a mean over, and what follows from it."""

from dataclasses import dataclass, replace
from functools import partial
from math import exp, inf
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedavg.metrics.metric import IGNORE, LossFunction, Metric, Sums, ratio
from fedavg.specs import bound

#: Losses over classes: with one of these, a task is classification.
CLASSIFICATION: Final = (F.cross_entropy, F.nll_loss, F.multi_margin_loss)
_CLASSIFICATION_MODULES: Final = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)


def is_classification(loss: LossFunction) -> bool:
    """True for PyTorch's losses over classes, with or without settings."""
    return isinstance(loss, _CLASSIFICATION_MODULES) or _function(loss) in CLASSIFICATION


def _function(loss: LossFunction) -> object:
    return loss.func if isinstance(loss, partial) else loss


@dataclass(frozen=True)
class Loss(Metric):
    """The mean of the task's loss over all predictions.

    Each batch counts by what its loss is a mean over: see `mean_over`.

    >>> from fedavg.metrics import judge
    >>> judge(Loss().bind(F.mse_loss), torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]))
    2.5
    """

    function: LossFunction | None = bound(None)
    name = "loss"
    size = 2
    higher_is_better = False

    def bind(self, loss: LossFunction) -> Metric:
        return self if self.function else replace(self, function=loss)

    def sums(self, output: Any, y: Any) -> Sums:
        assert self.function, "a task binds its metrics to its loss"
        if self.function is F.cross_entropy:  # summed in float64: more exact than the mean of a batch
            values = F.cross_entropy(output, y, reduction="none")
            count = mean_over(self.function, y) if y.shape == values.shape else values.numel()
            return [values.sum(dtype=torch.float64), count]
        count = mean_over(self.function, y)
        if not count:  # a mean over nothing is NaN
            return [0.0, 0.0]
        return [self.function(output, y).double() * count, count]

    def value(self, sums: Tensor) -> float:
        return ratio(sums[0], sums[1])


@dataclass(frozen=True)
class Perplexity(Metric):
    """exp of the mean loss over all predictions: for losses that are cross entropies.

    >>> from fedavg.metrics import judge
    >>> round(judge(Perplexity().bind(F.cross_entropy), torch.zeros(3, 10), torch.tensor([0, 4, 9])), 4)
    10.0
    """

    function: LossFunction | None = bound(None)
    name = "perplexity"
    size = 2
    higher_is_better = False

    def bind(self, loss: LossFunction) -> Metric:
        return self if self.function else replace(self, function=loss)

    def sums(self, output: Any, y: Any) -> Sums:
        return Loss(self.function).sums(output, y)

    def value(self, sums: Tensor) -> float:
        try:
            return exp(ratio(sums[0], sums[1]))
        except OverflowError:
            return inf


def mean_over(loss: LossFunction, y: Any) -> float:
    """What the mean of a batch is a mean over: predictions, by their weights if the loss has any.

    Targets of integers are predictions, except those that the loss ignores (-100 as PyTorch has it). All other targets
    count by rows: a mean over rows, or over the same number of values in each row, is then exact.
    """
    first = _first(y)
    if first.is_floating_point() or first.dtype == torch.bool:
        return float(len(first))
    settings = _settings(loss)
    ignored = settings.get("ignore_index")
    counted = first[first != (IGNORE if ignored is None else ignored)]
    weight = settings.get("weight")
    return float(weight.to(counted.device)[counted].sum()) if weight is not None else float(counted.numel())


def _settings(loss: LossFunction) -> dict[str, Any]:
    """The settings of a loss of PyTorch that change what it is a mean over."""
    if isinstance(loss, partial) and loss.func in CLASSIFICATION:
        return loss.keywords
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return {"weight": loss.weight, "ignore_index": loss.ignore_index}
    return {}


def _first(y: Any) -> Tensor:
    """The first tensor of targets that may be a tuple or a dict of them."""
    if isinstance(y, dict):
        return _first(next(iter(y.values())))
    if isinstance(y, tuple | list):
        return _first(y[0])
    assert isinstance(y, Tensor)
    return y
