"""Metrics of classifiers. Output: logits (B, C, ...), classes in dimension 1; y: classes (B, ...), or IGNORE."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedavg.metrics.metric import IGNORE, Metric, Sums, ratio


def predictions(output: Any, y: Any, metric: str) -> tuple[Tensor, Tensor]:
    """The most likely class and the right one of each prediction that counts, both 1-D."""
    _check_logits(output, y, metric)
    if y.is_floating_point():  # probabilities of classes
        y = y.argmax(1)
    counted = y != IGNORE
    return output.argmax(1)[counted], y[counted]


def _check_logits(output: Any, y: Any, metric: str) -> None:
    if not isinstance(output, Tensor) or not isinstance(y, Tensor):
        raise ValueError(f"{metric} judges tensors; got {type(output).__name__} and {type(y).__name__}: write a "
                         "fedavg.metrics.Metric for them")  # fmt: skip
    classes = (output.shape[0], *output.shape[2:])
    if output.dim() < 2 or output.shape[1] < 2 or y.shape not in (classes, output.shape):
        raise ValueError(
            f"{metric} expects logits (B, C) of at least 2 classes and y (B,) with the right ones; "
            f"got output {tuple(output.shape)} and y {tuple(y.shape)}"
        )


@dataclass(frozen=True)
class Accuracy(Metric):
    """The share of predictions whose most likely class is the right one.

    >>> from fedavg.metrics import judge
    >>> judge(Accuracy(), torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))
    0.5
    """

    name = "accuracy"
    size = 2
    higher_is_better = True

    def sums(self, output: Any, y: Any) -> Sums:
        predicted, right = predictions(output, y, self.name)
        return [(predicted == right).sum(), right.numel()]

    def value(self, sums: Tensor) -> float:
        return ratio(sums[0], sums[1])


@dataclass(frozen=True)
class TopKAccuracy(Metric):
    """The share of predictions whose right class is among the k most likely.

    >>> from fedavg.metrics import judge
    >>> judge(TopKAccuracy(2), torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), torch.tensor([1, 2]))
    0.5
    """

    k: int
    size = 2
    higher_is_better = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"top{self.k}"

    def sums(self, output: Any, y: Any) -> Sums:
        _check_logits(output, y, self.name)
        if not 1 <= self.k <= output.shape[1]:
            raise ValueError(f"topk: got k={self.k}; expected 1 to {output.shape[1]}, the number of classes")
        best = output.topk(self.k, dim=1).indices
        counted = y != IGNORE
        return [((best == y.unsqueeze(1)).any(1) & counted).sum(), counted.sum()]

    def value(self, sums: Tensor) -> float:
        return ratio(sums[0], sums[1])


@dataclass(frozen=True)
class ClassAccuracy(Metric):
    """The accuracy of each class, and as the metric's value their mean, in which rare classes count like common ones.

    >>> from fedavg.metrics import judge
    >>> logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    >>> judge(ClassAccuracy(2), logits, torch.tensor([0, 0, 0, 1]))
    0.5
    """

    classes: int
    name = "class_accuracy"
    higher_is_better = True

    @property
    def size(self) -> int:  # type: ignore[override]
        return 2 * self.classes

    def sums(self, output: Any, y: Any) -> Sums:
        predicted, right = predictions(output, y, self.name)
        check_classes(output, self.classes, self.name)
        return torch.cat([counts(right[predicted == right], self.classes), counts(right, self.classes)])

    def value(self, sums: Tensor) -> float:
        each = self._each(sums)
        return ratio(each.sum(), len(each))

    def details(self, sums: Tensor) -> Mapping[str, float]:
        present = [str(int(c)) for c in sums[self.classes :].nonzero()]
        return dict(zip(present, self._each(sums).tolist(), strict=True))

    def _each(self, sums: Tensor) -> Tensor:
        """The accuracy of the classes that there are."""
        right, all_of = sums.view(2, self.classes)
        each: Tensor = right[all_of > 0] / all_of[all_of > 0]
        return each


@dataclass(frozen=True)
class MacroF1(Metric):
    """The mean over classes of F1 = 2 TP / (2 TP + FP + FN); a class that is neither there nor predicted is left out.

    >>> from fedavg.metrics import judge
    >>> logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> judge(MacroF1(2), logits, torch.tensor([0, 0, 1, 1]))
    1.0
    """

    classes: int
    name = "f1"
    higher_is_better = True

    @property
    def size(self) -> int:  # type: ignore[override]
        return 3 * self.classes

    def sums(self, output: Any, y: Any) -> Sums:
        predicted, right = predictions(output, y, self.name)
        check_classes(output, self.classes, self.name)
        hits = predicted[predicted == right]
        return torch.cat([counts(each, self.classes) for each in (hits, predicted, right)])

    def value(self, sums: Tensor) -> float:
        hits, predicted, right = sums.view(3, self.classes)
        there = predicted + right > 0
        f1 = 2 * hits[there] / (predicted + right)[there]
        return ratio(f1.sum(), len(f1))


@dataclass(frozen=True)
class AUC(Metric):
    """The area under the ROC curve of a binary classifier, with scores sorted into bins of equal width.

    Output: one logit (B,) or (B, 1), or two (B, 2). Two examples in the same bin count as a tie, so the error is at
    most half the share of pairs of a positive and a negative example that lie in the same bin.

    >>> from fedavg.metrics import judge
    >>> judge(AUC(), torch.tensor([-2.0, -1.0, 1.0, 2.0]), torch.tensor([0, 0, 1, 1]))
    1.0
    """

    bins: int = 100
    name = "auc"
    higher_is_better = True

    @property
    def size(self) -> int:  # type: ignore[override]
        return 2 * self.bins

    def sums(self, output: Any, y: Any) -> Sums:
        scores = self._scores(output)
        y = y.reshape(-1)
        if len(y) != len(scores) or not bool(((y == 0) | (y == 1)).all()):
            raise ValueError(f"auc expects a label 0 or 1 for each of {len(scores)} scores; got {len(y)}, others too")
        places = (scores * self.bins).long().clamp(0, self.bins - 1)
        return torch.cat([counts(places[y == label], self.bins) for label in (0, 1)])

    def _scores(self, output: Any) -> Tensor:
        """The probability of class 1 for each example."""
        if output.dim() == 2 and output.shape[1] == 2:
            output = output[:, 1] - output[:, 0]
        if output.dim() == 1 or output.shape[1:] == (1,):
            scores: Tensor = output.reshape(-1).sigmoid()
            return scores
        raise ValueError(f"auc expects logits (B,), (B, 1) or (B, 2) of a binary classifier; got {tuple(output.shape)}")

    def value(self, sums: Tensor) -> float:
        negative, positive = sums.view(2, self.bins)
        below = negative.cumsum(0) - negative
        return ratio((positive * (below + negative / 2)).sum(), positive.sum() * negative.sum())


def counts(values: Tensor, bins: int) -> Tensor:
    """How often each of 0, 1, ..., bins - 1 is there."""
    return torch.bincount(values.reshape(-1), minlength=bins)


def check_classes(output: Tensor, classes: int, metric: str) -> None:
    if output.shape[1] != classes:
        raise ValueError(f"{metric}:{classes} is for {classes} classes; the model gives {output.shape[1]}")
