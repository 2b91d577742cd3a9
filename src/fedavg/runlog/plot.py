"""The picture of a run: each metric by round, the best so far as the paper reads it, and the target."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fedavg.errors import FedAvgError
from fedavg.metrics.goal import Goal
from fedavg.metrics.rows import CLIENTS
from fedavg.plan import Plan
from fedavg.runlog.curves import monotone, rounds_to_target
from fedavg.runlog.summary import curve, curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The most metrics that are drawn; the watched one comes first.
MOST_PANELS: Final = 4
_PALE: Final = "#9db8d2"
_DARK: Final = "#1f4e79"


def plot_run(plan: Plan, goal: Goal, rows: Sequence[dict[str, Any]], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise FedAvgError("plots need matplotlib, which is not installed: pip install 'fedavg[plots]'") from None
    names = panels(goal, rows)
    count = max(len(names), 1)
    figure = Figure(figsize=(7 + 4.5 * (count - 1), 4.2), layout="constrained")
    first, *others = figure.subplots(1, count, squeeze=False)[0]
    _draw_watched(first, goal, rows)
    for axes, name in zip(others, names[1:], strict=True):
        _draw_metric(axes, name, rows)
    shown = plan.to_dict()
    figure.suptitle(
        f"{shown['task']}, {shown['algorithm']}, {shown['partition'] or 'own partition'}: "
        f"C={plan.C:g} E={plan.E} B={plan.B} lr={plan.lr}",
        fontsize=10,
    )
    figure.savefig(path, dpi=130)


def panels(goal: Goal, rows: Sequence[dict[str, Any]]) -> list[str]:
    """The metrics to draw; not their details, such as one curve for each class."""
    names = [name for name in curves(rows)[1] if name != goal.metric and "." not in name]
    return [goal.metric, *names][:MOST_PANELS] if curve(rows, goal.metric)[0] else []


def _draw_watched(axes: "Axes", goal: Goal, rows: Sequence[dict[str, Any]]) -> None:
    rounds, values = curve(rows, goal.metric)
    if not values:
        axes.plot([row["round"] for row in rows], [row["train_loss"] for row in rows], color=_DARK)
        _label(axes, "training loss of the cohort")
        return
    up = goal.higher_is_better is not False
    axes.plot(rounds, values, color=_PALE, linewidth=1, label=goal.metric)
    if goal.higher_is_better is not None:
        axes.plot(rounds, monotone(values, up), color=_DARK, linewidth=1.8, label="best so far")
    _draw_spread(axes, goal.metric, rows)
    if goal.target is not None:
        axes.axhline(goal.target, color="#888888", linestyle="--", linewidth=1, label=f"target {goal.target:g}")
        crossing = rounds_to_target(rounds, values, goal.target, up)
        if crossing:
            axes.axvline(crossing, color="#c0504d", linestyle=":", label=f"reached after {crossing:.1f} rounds")
    _label(axes, goal.metric)
    axes.legend(loc="lower right" if up else "upper right", fontsize=9)


def _draw_metric(axes: "Axes", name: str, rows: Sequence[dict[str, Any]]) -> None:
    axes.plot(*curve(rows, name), color=_DARK, linewidth=1.4)
    _draw_spread(axes, name, rows)
    _label(axes, name)


def _draw_spread(axes: "Axes", name: str, rows: Sequence[dict[str, Any]]) -> None:
    """The band that contains eight of ten clients, if clients judged."""
    metric = name.removeprefix(f"{CLIENTS}.")
    points = [(row["round"], row["on_clients"]["spread"].get(metric)) for row in rows if row.get("on_clients")]
    known = [(round, spread["p10"], spread["p90"]) for round, spread in points if spread]
    if known:
        rounds, low, high = zip(*known, strict=True)
        axes.fill_between(rounds, low, high, color=_PALE, alpha=0.3, label="10 % to 90 % of clients")


def _label(axes: "Axes", ylabel: str) -> None:
    axes.set_xlabel("round of communication")
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25)
