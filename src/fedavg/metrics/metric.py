"""`Metric`: sums over examples, and a function of the sums. It knows nothing of tasks, clients or rounds.

Sums can be added: over the batches of a test set, over clients, and under the masks of secure aggregation. So the value
is that of the whole set, however the set is cut into pieces; a mean of the pieces' values would not be. A `Measure` is
the same without predictions: what clients measure in training has this form (`training.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from fedavg.specs import Pluggable

#: A target that is no prediction: PyTorch's losses leave it out by default.
IGNORE: Final = -100

#: From what the module gave and the targets to the mean loss of the batch.
LossFunction = Callable[[Any, Any], Tensor]
#: From what the module gave and the targets to one value per prediction.
ValueFunction = Callable[[Any, Any], Tensor]
#: A vector, or one number or scalar tensor for each sum.
Sums = Tensor | Sequence[float | Tensor]


class Measure(ABC):
    """Some sums, and a function of the sums. A measure that is not over predictions comes with your own algorithm:

    >>> from dataclasses import dataclass, replace
    >>> from fedavg import FedAvg, Plan, train
    >>> class Longest(Measure):
    ...     name, size, higher_is_better = "moved", 2, None
    ...     def value(self, sums):
    ...         return float(sums[0] / sums[1]) ** 0.5
    >>> @dataclass(frozen=True)
    ... class Told(FedAvg):
    ...     name = "told"
    ...     metrics = ("train_loss", Longest())
    ...
    ...     def client_update(self, client, weights, work):
    ...         update = super().client_update(client, weights, work)
    ...         return replace(update, metrics={**update.metrics, "moved": [update.vector.square().sum(), 1]})
    >>> *_, last = train(Plan(data="mnist", algorithm=Told(), C=0.02, rounds=1, workers=1))
    >>> list(last.metrics)
    ['moved']
    """

    #: What results call it.
    name: str
    #: How many sums there are: fixed, so that they can be masked.
    size: int
    #: Which way is better; None if that is not known; it cannot be a target then.
    higher_is_better: bool | None
    #: True for one number of each client that counts by the weight of its update: its sums are not sent one by one.
    by_weight: bool = False

    @abstractmethod
    def value(self, sums: Tensor) -> float:
        """The metric of all whose sums were added up, float64 of shape (size,)."""

    def details(self, sums: Tensor) -> Mapping[str, float]:
        """More numbers from the same sums, such as one for each class; reported as `name.key`."""
        return {}


class Metric(Measure, Pluggable):
    """A way to judge a model. A metric of your own is a frozen dataclass of this class:

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Recall(Metric):
    ...     name, size, higher_is_better = "recall", 2, True
    ...     def sums(self, output, y):
    ...         return [((output.argmax(1) == 1) & (y == 1)).sum(), (y == 1).sum()]
    ...     def value(self, sums):
    ...         return float(sums[0] / sums[1])
    >>> output = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> judge(Recall(), output, torch.tensor([1, 1, 0]))
    0.5
    """

    kind = "metrics"

    @classmethod
    def registry(cls) -> Mapping[str, type["Metric"]]:
        from fedavg.metrics import METRICS

        return METRICS

    @abstractmethod
    def sums(self, output: Any, y: Any) -> Sums:
        """Sums over the predictions of one batch; `size` of them."""

    def bind(self, loss: LossFunction) -> "Metric":
        """The metric for a task with this loss; most do not depend on it."""
        return self


@dataclass(frozen=True)
class Mean(Metric):
    """The mean over all predictions of what a function gives for each of them.

    >>> error = Mean(lambda output, y: (output - y).abs(), "error", higher_is_better=False)
    >>> judge(error, torch.tensor([1.0, 2.0, 6.0]), torch.tensor([1.0, 3.0, 4.0]))
    1.0
    """

    function: ValueFunction
    name: str = "mean"
    higher_is_better: bool | None = None
    size = 2

    def sums(self, output: Any, y: Any) -> Sums:
        values = self.function(output, y)
        if not isinstance(values, Tensor) or values.dim() == 0:
            raise ValueError(
                f"metric '{self.name}' gave one number ({values}) for a whole batch, and batches are not equal: such "
                "numbers cannot be averaged. Expected a tensor with one value per prediction (for a loss of PyTorch: "
                "reduction='none'), or a fedavg.metrics.Metric, which gives sums"
            )
        return [values.sum(dtype=torch.float64), values.numel()]

    def value(self, sums: Tensor) -> float:
        return ratio(sums[0], sums[1])


class Ratio(Protocol):
    def __float__(self) -> float: ...


def ratio(part: Ratio, whole: Ratio) -> float:
    """NaN where there is nothing to divide by: a set without predictions has no mean."""
    return float(part) / float(whole) if float(whole) else float("nan")


def checked_sums(metric: Metric, output: Any, y: Any) -> Tensor:
    """The sums of a batch as a float64 vector on the CPU."""
    given = metric.sums(output, y)
    if not isinstance(given, Tensor):
        given = torch.stack([torch.as_tensor(each, dtype=torch.float64) for each in given])
    vector = given.to("cpu", torch.float64)
    if vector.shape != (metric.size,):
        raise ValueError(f"metric '{metric.name}' gave sums of shape {tuple(vector.shape)}; expected ({metric.size},)")
    return vector


def add_up(pieces: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, Tensor]:
    """The sums over all pieces, exactly rounded: the order of the pieces cannot change a bit."""
    columns = {name: zip(*(piece[name] for piece in pieces), strict=True) for name in pieces[0]} if pieces else {}
    return {name: torch.tensor([fsum(each) for each in sums], dtype=torch.float64) for name, sums in columns.items()}


def report(metrics: Mapping[str, Measure], sums: Mapping[str, Tensor]) -> dict[str, float]:
    """The value of each metric by its name, followed by its details."""
    values: dict[str, float] = {}
    for name, metric in metrics.items():
        values[name] = metric.value(sums[name])
        values |= {f"{name}.{key}": value for key, value in metric.details(sums[name]).items()}
    return values


def judge(metric: Metric, output: Any, y: Any) -> float:
    """The value of a metric on one batch."""
    return metric.value(checked_sums(metric, output, y))
