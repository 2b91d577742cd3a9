"""Metrics of regression. Output and y have as many numbers."""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from fedavg.metrics.metric import Metric, Sums, ratio


def errors(output: Any, y: Any, metric: str) -> Tensor:
    """output - y, each number against its own; (B, 1) against (B,) must not become (B, B)."""
    if output.shape[:1] != y.shape[:1] or output.numel() != y.numel():
        raise ValueError(
            f"{metric} expects as many numbers in output and y; got {tuple(output.shape)} and {tuple(y.shape)}"
        )
    return output.reshape(y.shape) - y  # type: ignore[no-any-return]


@dataclass(frozen=True)
class MAE(Metric):
    """The mean absolute error.

    >>> from fedavg.metrics import judge
    >>> judge(MAE(), torch.tensor([[1.0], [4.0]]), torch.tensor([2.0, 2.0]))
    1.5
    """

    name = "mae"
    size = 2
    higher_is_better = False

    def sums(self, output: Any, y: Any) -> Sums:
        return [errors(output, y, self.name).abs().sum(dtype=torch.float64), y.numel()]

    def value(self, sums: Tensor) -> float:
        return ratio(sums[0], sums[1])


@dataclass(frozen=True)
class RMSE(Metric):
    """The root of the mean squared error.

    >>> from fedavg.metrics import judge
    >>> judge(RMSE(), torch.tensor([3.0, 4.0]), torch.tensor([0.0, 0.0])) == 12.5**0.5
    True
    """

    name = "rmse"
    size = 2
    higher_is_better = False

    def sums(self, output: Any, y: Any) -> Sums:
        return [errors(output, y, self.name).double().square().sum(), y.numel()]

    def value(self, sums: Tensor) -> float:
        return sqrt(ratio(sums[0], sums[1]))
