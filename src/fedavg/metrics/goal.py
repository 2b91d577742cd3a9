"""When a run has done enough: a metric reached its target, or has not improved for too long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedavg.errors import PlanError
from fedavg.metrics.metric import Metric


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
        """False for NaN, and for a metric whose direction nobody has told."""
        if self.higher_is_better is None:
            return False
        return value > than if self.higher_is_better else value < than

    def reached(self, value: float) -> bool:
        return self.target is not None and (value == self.target or self.better(value, self.target))

    def best(self, values: Sequence[float]) -> float | None:
        """The best of some values; None if there are none, or nobody knows which way is better."""
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
    return Best(value, round) if best is None or best.value != best.value or goal.better(value, best.value) else best


def stalled(goal: Goal, best: Best, round: int) -> bool:
    """True if patience has run out by this round."""
    return goal.patience is not None and round - best.round >= goal.patience


def make_goal(target: float | str | None, patience: int | str | None, metrics: Mapping[str, Metric]) -> Goal:
    """The goal of a plan. `target` is an accuracy or 'f1=0.8', `patience` rounds or 'loss=20'.

    Without either, the task's first metric is the one to look at.

    >>> from fedavg.metrics import Accuracy, Loss
    >>> make_goal("loss=0.5", 20, {"accuracy": Accuracy(), "loss": Loss()})
    Goal(metric='loss', higher_is_better=False, target=0.5, patience=20)
    """
    target_of, target_value = _split(target, "accuracy")
    watched, rounds = _split(patience, target_of or next(iter(metrics), ""))
    if target_of and watched and target_of != watched:
        raise PlanError(f"patience: got '{patience}' with target '{target}'; expected both of one metric")
    name = target_of or watched or next(iter(metrics), "")
    if not name and not metrics:
        return Goal("", None)
    option = "target" if target_of else "patience"
    if name not in metrics:
        raise PlanError(
            f"{option}: the task has no metric '{name}'; expected one of {', '.join(metrics)}, as in "
            f"{option}='{next(iter(metrics))}={target_value or rounds or 0:g}', or add '{name}' to its metrics"
        )
    direction = metrics[name].higher_is_better
    if direction is None and (target_of or rounds):
        raise PlanError(
            f"{option}: nobody has said whether a higher '{name}' is better; expected a metric that says it: "
            "fedavg.metrics.Mean(function, higher_is_better=True)"
        )
    return Goal(name, direction, target_value, int(rounds) if rounds else None)


def _split(text: float | str | None, default: str) -> tuple[str, float | None]:
    """'f1=0.8' as its two parts; a number belongs to the metric called `default`."""
    if text is None:
        return "", None
    name, equals, number = str(text).rpartition("=")
    return (name if equals else default), float(number)
