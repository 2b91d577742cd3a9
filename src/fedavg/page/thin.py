"""Curves with no more points than a screen has room for, and bands over curves."""

from dataclasses import dataclass
from typing import Final

import numpy as np

#: Points of a curve that are sent to the page.
POINTS: Final = 600


@dataclass(frozen=True)
class Curve:
    """x and y of equal length; both finite, x never falls."""

    x: np.ndarray
    y: np.ndarray


def curve(x: np.ndarray, y: np.ndarray) -> Curve:
    """The points at which both are known."""
    known = np.isfinite(x) & np.isfinite(y)
    return Curve(x[known], y[known])


def thinned(full: Curve, points: int = POINTS) -> Curve:
    """At most this many of the points: the first, the last, and of each stretch between the lowest and the highest.

    So no peak is lost, which a mean or every n-th point would lose.

    >>> thinned(Curve(np.arange(9.0), np.array([0, 1, 9, 1, 0, 1, -9, 1, 0.0])), 6).y.tolist()
    [0.0, 1.0, 9.0, -9.0, 1.0, 0.0]
    """
    if len(full.x) <= points:
        return full
    stretches = np.array_split(np.arange(1, len(full.x) - 1), max(1, (points - 2) // 2))
    ends = [{int(part[full.y[part].argmin()]), int(part[full.y[part].argmax()])} for part in stretches if len(part)]
    kept = [0, *sorted(index for pair in ends for index in pair), len(full.x) - 1]
    return Curve(full.x[kept], full.y[kept])


@dataclass(frozen=True)
class Band:
    """Mean, lowest and highest of several curves, where all of them are known."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(curves: list[Curve], points: int = POINTS) -> Band | None:
    """Curves are interpolated linearly between evaluated points. None if they have no stretch in common."""
    first, last = max(each.x[0] for each in curves), min(each.x[-1] for each in curves)
    if first > last:
        return None
    grid = np.unique(np.concatenate([each.x for each in curves]))
    grid = grid[(grid >= first) & (grid <= last)]
    if len(grid) > points:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, points).round().astype(int))]
    values = np.stack([np.interp(grid, each.x, each.y) for each in curves])
    return Band(grid, values.mean(0), values.min(0), values.max(0))
