"""The figure of a sweep: the curves of its best points, and the result of each value of its widest range."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fedavg.errors import FedAvgError
from fedavg.runlog.curves import monotone
from fedavg.study.sweep.points import shown
from fedavg.study.sweep.run import SweepResult
from fedavg.study.sweep.tally import DONE, Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The most points whose curves are drawn, the best first: only a few colours are easy to tell apart.
MOST_CURVES: Final = 8


def draw(result: SweepResult, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise FedAvgError("plots need matplotlib, which is not installed: pip install 'fedavg[plots]'") from None
    axis = numeric_axis(result.entries)
    figure = Figure(figsize=(12, 4.6) if axis else (7, 4.6), layout="constrained")
    panels = figure.subplots(1, 2 if axis else 1, squeeze=False)[0]
    _draw_curves(panels[0], result)
    if axis:
        _draw_axis(panels[1], result, axis)
    figure.savefig(path, dpi=130)


def numeric_axis(entries: Sequence[Entry]) -> str | None:
    """The option with the most distinct numbers, at least three; None if there is none."""
    values = {name: {_number(entry.settings[name]) for entry in entries} for name in entries[0].settings}
    counts = {name: len(found) for name, found in values.items() if None not in found}
    widest = max(counts, key=lambda name: counts[name], default=None)
    return widest if widest is not None and counts[widest] >= 3 else None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _draw_curves(axes: "Axes", result: SweepResult) -> None:
    """The best value so far by round: the mean over seeds, and the range as a band."""
    up = result.goal.higher_is_better is not False
    for index, entry in enumerate([entry for entry in result.entries if entry.best][:MOST_CURVES]):
        runs = [dict(zip(run.rounds, monotone(run.values, up), strict=True)) for run in entry.runs if run.values]
        rounds = sorted(set.intersection(*(set(run) for run in runs)))
        columns = [[run[round] for run in runs] for round in rounds]
        label = entry.name if entry.status == DONE else f"{entry.name} ({entry.status})"
        style = "-" if entry.status == DONE else ":"
        axes.plot(rounds, [sum(c) / len(c) for c in columns], style, color=f"C{index}", linewidth=1.5, label=label)
        if len(runs) > 1:
            low, high = [min(c) for c in columns], [max(c) for c in columns]
            axes.fill_between(rounds, low, high, color=f"C{index}", alpha=0.15, linewidth=0)
    if result.goal.target is not None:
        axes.axhline(result.goal.target, color="#888888", linestyle="--", linewidth=1)
    axes.set_xlabel("round of communication")
    axes.set_ylabel(f"best {result.goal.metric} so far")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="lower right" if up else "upper right")


def _draw_axis(axes: "Axes", result: SweepResult, axis: str) -> None:
    """The result of each value: a line for each combination of the other settings; hollow for a dropped point."""
    lines: dict[str, list[Entry]] = {}
    for entry in result.entries:
        others = " ".join(f"{name}={shown(value)}" for name, value in entry.settings.items() if name != axis)
        lines.setdefault(others, []).append(entry)
    for index, (label, entries) in enumerate(sorted(lines.items())):
        known = sorted((e for e in entries if e.best), key=lambda e: float(e.settings[axis]))
        x = [float(e.settings[axis]) for e in known]
        spans = [e.best for e in known if e.best]
        axes.plot(x, [span.mean for span in spans], color=f"C{index}", linewidth=1.2, label=label or None)
        axes.vlines(x, [span.low for span in spans], [span.high for span in spans], color=f"C{index}", linewidth=1)
        faces = [f"C{index}" if e.status == DONE else "white" for e in known]
        axes.scatter(x, [span.mean for span in spans], c=faces, edgecolors=f"C{index}", zorder=3, s=28)
    numbers = [value for entry in result.entries if (value := _number(entry.settings[axis])) is not None]
    if min(numbers) > 0 and max(numbers) >= 10 * min(numbers):
        axes.set_xscale("log")
    axes.set_xlabel(axis)
    axes.set_ylabel(f"best {result.goal.metric} (hollow: not run to its end)")
    axes.grid(alpha=0.25)
    if any(lines):
        axes.legend(fontsize=8)
