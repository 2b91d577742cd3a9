"""The checks that algorithms make of their own settings and of the plan's optimiser."""

from math import inf, isfinite

from fedavg.algorithms.algorithm import PlanOptions
from fedavg.errors import PlanError
from fedavg.optimizers import Folded, Optimizer, make_optimizer


def require(algorithm: object, name: str, *, low: float, high: float = inf, above: bool = False) -> None:
    """Refuse a setting that is not a finite number from low to high; with `above`, low itself is not allowed."""
    value = getattr(algorithm, name)
    if isfinite(value) and low <= value <= high and not (above and value == low):
        return
    upper = f" to {high:g}" if high < inf else ""
    raise PlanError(
        f"algorithm {algorithm.name}: {name} is {value}; "  # type: ignore[attr-defined]
        f"expected a finite number {'above' if above else 'from'} {low:g}{upper}"
    )


def optimizer_of(plan: PlanOptions) -> Optimizer:
    return make_optimizer(plan.optimizer)


def require_plain_sgd(plan: PlanOptions, algorithm: str, reason: str) -> None:
    if optimizer_of(plan).folded != Folded():
        raise PlanError(f"algorithm {algorithm}: got optimizer '{plan.optimizer}'; expected 'sgd', since {reason}")


def require_linear(plan: PlanOptions, algorithm: str, reason: str) -> None:
    """Accept SGD with momentum; refuse steps that are not sums of gradients times the rate, such as Adam's."""
    if optimizer_of(plan).effective_steps(1) is None:
        raise PlanError(
            f"algorithm {algorithm}: got optimizer '{plan.optimizer}'; expected 'sgd', with momentum that is not kept "
            f"if any, since {reason}"
        )
