"""The paper's way to read a learning curve (§3)."""

from collections.abc import Sequence


def monotone(values: Sequence[float], higher_is_better: bool = True) -> list[float]:
    """The best value so far, at each point."""
    best: list[float] = []
    for value in values:
        better = max if higher_is_better else min
        best.append(better(value, best[-1]) if best else value)
    return best


def rounds_to_target(
    rounds: Sequence[int], values: Sequence[float], target: float, higher_is_better: bool = True
) -> float | None:
    """Where the monotone curve crosses the target, by linear interpolation between evaluated rounds; None if never.

    A curve whose first point is already at the target crosses there.

    >>> rounds_to_target([1, 2, 3], [0.90, 0.96, 0.98], 0.97)
    2.5
    >>> rounds_to_target([1, 2, 3], [0.9, 0.6, 0.2], 0.4, higher_is_better=False)
    2.5
    """
    if not higher_is_better:
        return rounds_to_target(rounds, [-value for value in values], -target)
    curve = monotone(values)
    for index, value in enumerate(curve):
        if value < target:
            continue
        if index == 0 or value == curve[index - 1]:
            return float(rounds[index])
        part = (target - curve[index - 1]) / (value - curve[index - 1])
        return rounds[index - 1] + part * (rounds[index] - rounds[index - 1])
    return None
