"""A run at a glance: one line, or for a notebook a small table with the curve."""

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from fedavg.metrics.goal import Goal
from fedavg.runlog.summary import Summary, curve

_WIDTH: Final = 320
_HEIGHT: Final = 80


def one_line(summary: Summary) -> str:
    """'finished after 20 rounds: accuracy 0.9712 (best 0.9730), loss 0.1012; runs/a'"""
    values = [
        f"{name} {each['final']:.4f}" + (f" (best {each['best']:.4f})" if "best" in each else "")
        for name, each in summary.metrics.items()
        if "." not in name
    ]
    judged = ": " + ", ".join(values) if values else ""
    where = f"; {summary.run_dir}" if summary.run_dir else ""
    return f"{summary.status} after {summary.rounds} rounds{judged}{where}"


def as_html(summary: Summary, goal: Goal, rows: Sequence[dict[str, Any]]) -> str:
    facts = [("status", f"{summary.status} after {summary.rounds} rounds")]
    facts += [
        (name, f"{each['final']:.4f}" + (f", best {each['best']:.4f}" if "best" in each else ""))
        for name, each in summary.metrics.items()
        if "." not in name
    ]
    if summary.rounds_to_target is not None:
        facts.append((f"rounds to {goal.metric} {summary.target:g}", f"{summary.rounds_to_target:.1f}"))
    facts += [
        ("sent", f"{summary.bytes_up / 1e6:,.1f} MB up, {summary.bytes_down / 1e6:,.1f} MB down"),
        ("time", f"{summary.seconds:.1f} s"),
    ]
    if summary.run_dir:
        facts.append(("run directory", summary.run_dir))
    table = "".join(f"<tr><th style='text-align:left'>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts)
    return f"<table>{table}</table>{_picture(goal, rows)}"


def _picture(goal: Goal, rows: Sequence[dict[str, Any]]) -> str:
    """The curve of the watched metric as a line; empty if there are fewer than two points."""
    rounds, values = curve(rows, goal.metric)
    known = [(round, value) for round, value in zip(rounds, values, strict=True) if value == value]
    if len(known) < 2:
        return ""
    low, high = min(value for _, value in known), max(value for _, value in known)
    first, last = known[0][0], known[-1][0]
    points = " ".join(
        f"{_WIDTH * (round - first) / (last - first):.1f},{_HEIGHT * (1 - (value - low) / ((high - low) or 1)):.1f}"
        for round, value in known
    )
    title = f"{goal.metric} from {known[0][1]:.4f} in round {first} to {known[-1][1]:.4f} in round {last}"
    return (
        f"<svg role='img' width='{_WIDTH + 8}' height='{_HEIGHT + 8}' viewBox='-4 -4 {_WIDTH + 8} {_HEIGHT + 8}'>"
        f"<title>{escape(title)}</title>"
        f"<polyline fill='none' stroke='#1f6fb2' stroke-width='2' points='{points}'/></svg>"
    )
