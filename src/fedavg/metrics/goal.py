"""When a run has done enough: a metric reached its target, or has not improved for too long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from fedavg.errors import PlanError
from fedavg.metrics.metric import Measure
from fedavg.metrics.rows import CLIENTS, TRAINING
from fedavg.metrics.spread import SPREADS


@dataclass(frozen=True)
class Goal:
    """The metric that a run is watched by, and when it may stop.

    `patience` is in rounds; an improvement is any value that is better than all before it.
    """

    metric: str
    higher_is_better: bool | None
    target: float | None = None
    patience: int | None = None

    def better(self, value: float, than: float) -> bool:
        """False for NaN, and for a metric whose direction is not known."""
        if self.higher_is_better is None:
            return False
        return value > than if self.higher_is_better else value < than

    def reached(self, value: float) -> bool:
        return self.target is not None and (value == self.target or self.better(value, self.target))

    def best(self, values: Sequence[float]) -> float | None:
        """The best of some values; None if there are none, or it is not known which way is better."""
        if not values or self.higher_is_better is None:
            return None
        return max(values) if self.higher_is_better else min(values)


@dataclass(frozen=True)
class Best:
    """The best value so far, and the round it is of."""

    value: float
    round: int


def improved(goal: Goal, best: Best | None, round: int, value: float) -> Best:
    """What is the best after one more evaluation; the first counts as an improvement, whatever it is."""
    first_number = best is not None and isnan(best.value) and not isnan(value)
    return Best(value, round) if best is None or first_number or goal.better(value, best.value) else best


def stalled(goal: Goal, best: Best, round: int) -> bool:
    """True if patience has run out by this round."""
    return goal.patience is not None and round - best.round >= goal.patience


def make_goal(
    target: float | str | None,
    patience: int | str | None,
    metrics: Mapping[str, Measure],
    training: Mapping[str, Measure],
) -> Goal:
    """The goal of a plan. `target` is an accuracy or 'f1=0.8', `patience` rounds or 'loss=20'.

    `clients.f1` is the metric as clients judge it, `clients.f1.worst_decile` its spread over them, and
    `training.train_loss` what cohorts measure in training. Without target and patience, the task's first metric is the
    one to look at.

    >>> from fedavg.metrics import Accuracy, Loss
    >>> make_goal("clients.loss=0.5", 20, {"accuracy": Accuracy(), "loss": Loss()}, {})
    Goal(metric='clients.loss', higher_is_better=False, target=0.5, patience=20)
    """
    target_of, target_value = _split(target, "accuracy")
    watched, rounds = _split(patience, target_of or next(iter(metrics), ""))
    if target_of and watched and target_of != watched:
        raise PlanError(f"patience: got '{patience}' with target '{target}'; expected both of one metric")
    name = target_of or watched or next(iter(metrics), "")
    if not name:
        return Goal("", None)
    option = "target" if target_of else "patience"
    direction = _direction(name, option, metrics, training)
    if direction is None and (target_of or rounds):
        raise PlanError(
            f"{option}: nothing says whether a higher '{name}' is better; expected a metric that says so: "
            "fedavg.metrics.Mean(function, higher_is_better=True)"
        )
    return Goal(name, direction, target_value, int(rounds) if rounds else None)


def _direction(name: str, option: str, metrics: Mapping[str, Measure], training: Mapping[str, Measure]) -> bool | None:
    """Which way is better, by a name as in `rows.py`; PlanError if there is no such metric."""
    known = {
        **{f"{TRAINING}.{inner}": measure.higher_is_better for inner, measure in training.items()},
        **{f"{CLIENTS}.{inner}": metric.higher_is_better for inner, metric in metrics.items()},
        **{inner: metric.higher_is_better for inner, metric in metrics.items()},
    }
    if name in known:
        return known[name]
    metric, _, key = name.rpartition(".")
    if metric.startswith(f"{CLIENTS}.") and metric in known and key in SPREADS:
        return False if key == "variance" else known[metric]
    several = [*metrics, *(each for each in known if each not in metrics)]
    raise PlanError(
        f"{option}: the task has no metric '{name}'; expected one of {', '.join(several)}, as in "
        f"{option}='{several[0] if several else 'accuracy'}=N', or add '{name}' to the task's metrics"
    )


def _split(text: float | str | None, default: str) -> tuple[str, float | None]:
    """'f1=0.8' as its two parts; a number belongs to the metric called `default`."""
    if text is None:
        return "", None
    name, equals, number = str(text).rpartition("=")
    return (name if equals else default), float(number)
