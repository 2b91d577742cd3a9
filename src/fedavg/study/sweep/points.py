"""The runs of a sweep: each combination of settings, with a plan for every seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedavg.errors import PlanError
from fedavg.plan import Plan
from fedavg.study.sweep.axes import Settings


@dataclass(frozen=True, eq=False)
class Point:
    """One combination of settings. `plans`: the same plan for each seed; the first seed is raced first."""

    settings: Settings
    plans: tuple[Plan, ...]

    @property
    def name(self) -> str:
        return " ".join(f"{name}={shown(value)}" for name, value in self.settings) or "the plan itself"

    @property
    def rate(self) -> str:
        return shown(dict(self.settings).get("lr", self.plans[0].lr))

    @property
    def rivals(self) -> Settings:
        """What points that differ only in their learning rate have in common: they race each other."""
        return tuple(item for item in self.settings if item[0] != "lr")


def points_of(plan: Plan, combinations: Sequence[Settings], seeds: int) -> list[Point]:
    """Every plan is built, and so checked, before anything runs."""
    points = [
        Point(settings, tuple(_plan(plan, settings, plan.seed + seed) for seed in range(seeds)))
        for settings in combinations
    ]
    seen: dict[str, Point] = {}
    for point in points:
        other = seen.setdefault(point.plans[0].digest, point)
        if other is not point:
            raise PlanError(
                f"the sweep has the same plan twice: {other.name} and {point.name}; expected values that differ "
                "(data given as objects is distinguished by its name only)"
            )
    return points


def _plan(plan: Plan, settings: Settings, seed: int) -> Plan:
    try:
        return replace(plan, **dict(settings), seed=seed)
    except PlanError as error:
        raise PlanError(f"--grid: {error}") from None


def shown(value: object) -> str:
    """A setting for people: text and numbers as they are, an object by its text form."""
    return f"{value:g}" if isinstance(value, float) else str(value)
