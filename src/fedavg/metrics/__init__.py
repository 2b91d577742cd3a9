"""How models are judged. A new metric is one class and one line here."""

from collections.abc import Iterable, Mapping

from fedavg.errors import TaskError
from fedavg.metrics.classification import AUC, Accuracy, ClassAccuracy, MacroF1, TopKAccuracy
from fedavg.metrics.losses import Loss, Perplexity, is_classification
from fedavg.metrics.metric import (
    IGNORE,
    LossFunction,
    Mean,
    Measure,
    Metric,
    ValueFunction,
    add_up,
    checked_sums,
    judge,
    report,
)
from fedavg.metrics.regression import MAE, RMSE
from fedavg.specs import make

METRICS: dict[str, type[Metric]] = {
    "accuracy": Accuracy,
    "topk": TopKAccuracy,
    "loss": Loss,
    "perplexity": Perplexity,
    "class_accuracy": ClassAccuracy,
    "f1": MacroF1,
    "auc": AUC,
    "mae": MAE,
    "rmse": RMSE,
}

#: What plain functions by these names mean; for others it is not known which way is better.
_DIRECTIONS = {"accuracy": True, "loss": False, "error": False}

#: A metric, its text (`f1:10`), or a function that gives one value per prediction.
MetricGiven = Metric | str | ValueFunction
MetricsGiven = Mapping[str, MetricGiven] | Iterable[Metric | str]


def make_metric(value: str | Metric) -> Metric:
    """A metric as a plan or a task has it: the object, or its name with settings after colons."""
    return make(value, Metric)  # type: ignore[type-abstract]


def default_metrics(loss: LossFunction) -> dict[str, Metric]:
    """The task's loss, and accuracy if it is a loss over classes."""
    chosen = (Accuracy(), Loss()) if is_classification(loss) else (Loss(),)
    return by_name(chosen, loss)


def by_name(given: MetricsGiven, loss: LossFunction) -> dict[str, Metric]:
    """Metrics by the names that results will have, bound to the task's loss."""
    if isinstance(given, str):
        given = [part.strip() for part in given.split(",") if part.strip()]
    if isinstance(given, Mapping):
        return {name: _made(name, metric, loss) for name, metric in given.items()}
    if not isinstance(given, Iterable):
        raise TaskError(f"metrics: got {given!r}; expected a list such as ['accuracy', 'f1:10'], or a dict with names")
    made = [_made("", metric, loss) for metric in given]
    names = [metric.name for metric in made]
    if len(set(names)) < len(names):
        raise TaskError(f"metrics: got {', '.join(names)}; expected each name once: give a dict with names of your own")
    return dict(zip(names, made, strict=True))


def _made(name: str, given: MetricGiven, loss: LossFunction) -> Metric:
    if isinstance(given, str | Metric):
        return make_metric(given).bind(loss)
    if given is loss:
        return Loss().bind(loss)
    if callable(given) and name:
        return Mean(given, name, _DIRECTIONS.get(name))
    raise TaskError(
        f"metric {name or given!r}: got {type(given).__name__}; expected a name such as 'f1:10', a "
        "fedavg.metrics.Metric, or, in a dict with its name, a function of (output, y) with one value per prediction"
    )


__all__ = [
    "AUC", "IGNORE", "MAE", "METRICS", "RMSE", "Accuracy", "ClassAccuracy", "Loss", "MacroF1", "Mean", "Measure",
    "Metric", "MetricsGiven", "Perplexity", "TopKAccuracy", "add_up", "by_name", "checked_sums", "default_metrics",
    "judge", "make_metric", "report",
]  # fmt: skip
