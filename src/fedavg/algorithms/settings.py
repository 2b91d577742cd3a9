"""The check that algorithms make of their own settings."""

from math import inf, isfinite

from fedavg.errors import PlanError


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
