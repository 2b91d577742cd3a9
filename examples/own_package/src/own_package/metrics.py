"""The mean probability that the model gives to the right class."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedavg.metrics import Metric


@dataclass(frozen=True)
class Confidence(Metric):
    name = "confidence"
    size = 2
    higher_is_better = True

    def sums(self, output: Tensor, y: Tensor) -> Sequence[float | Tensor]:
        right = output.softmax(1).gather(1, y[:, None])
        return [right.double().sum(), len(y)]

    def value(self, sums: Tensor) -> float:
        return float(sums[0] / sums[1])
