"""What the page asks for, as plain values for JSON. It shows only what is on record."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedavg.page.compare import bands, curves, drawable, group_of
from fedavg.page.record import RunFiles
from fedavg.page.thin import POINTS
from fedavg.study.axes import AXES
from fedavg.study.compare import differing

Answer = dict[str, Any]

#: The most bars in a picture over clients.
BARS: Final = 200
#: Seconds of a simulated day.
DAY_S: Final = 86_400


def index(records: Sequence[RunFiles], root: Path) -> Answer:
    """All runs with their states and totals, what can be drawn, and the options in which their plans differ."""
    plans = [record.plan for record in records if record.plan]
    return {
        "root": str(root),
        "runs": [listed(record) for record in records],
        "options": differing(plans) if len(plans) > 1 else [],
        "columns": drawable(records),
        "axes": list(AXES),
    }


def listed(record: RunFiles) -> Answer:
    """One line of the list of runs."""
    columns, plan = record.columns, record.plan
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state.word,
        "notes": list(record.state.notes),
        "rounds": record.rounds,
        "planned": plan.get("rounds"),
        "last": {name: value for name in columns.names if (value := _number(columns.last(name))) is not None},
        "bytes_up": columns.total("bytes_up"),
        "bytes_down": columns.total("bytes_down"),
        "seconds": columns.total("seconds") + columns.total("eval_seconds"),
        "simulated_s": columns.total("simulated_s"),
        "changed": record.changed,
        "group": group_of(plan),
        "plan": as_json(plan),
        "summary": as_json(record.summary),
    }


def drawn(records: Sequence[RunFiles], x: str, y: str) -> Answer:
    """The curves of runs, and the bands over those that differ in their seeds alone."""
    return {"x": x, "y": y, "curves": curves(records, x, y), "bands": bands(records, x, y)}


def one_round(record: RunFiles, round: int) -> Answer | None:
    """The record of a round, as far as the plan allows it to be shown; None if there is no such round."""
    row = record.row(round)
    if row is None:
        return None
    plan = record.plan
    return {
        "run": record.id,
        "round": round,
        "rounds": record.rounds,
        "row": as_json(row),
        "codec": plan.get("codec"),
        "downlink": plan.get("downlink"),
        "secagg": plan.get("secagg"),
        "budget": plan.get("dp_epsilon"),
        "private": is_private(plan, row),
    }


def is_private(plan: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """True if a single client's numbers must not be shown."""
    return plan.get("secagg", "none") != "none" or bool(row.get("ledger"))


def clients(record: RunFiles) -> Answer:
    """How well the model does across clients, round by round, and how often each took part."""
    prefix = "on_clients.spread."
    names = [name.removeprefix(prefix).rsplit(".", 1) for name in record.columns.names if name.startswith(prefix)]
    spread: dict[str, Answer] = {}
    for metric, key in names:
        found = curves([record], "round", f"{prefix}{metric}.{key}")
        spread.setdefault(metric, {})[key] = {axis: found[0][axis] for axis in ("x", "y")} if found else None
    judged = record.columns.get("on_clients.clients")
    last = int(np.flatnonzero(np.isfinite(judged))[-1]) + 1 if np.isfinite(judged).any() else 0
    row = record.row(last) or {}
    return {
        "metrics": list(spread),
        "spread": spread,
        "judged": last,
        "worst": (row.get("on_clients") or {}).get("worst"),
        "private": is_private(record.plan, record.row(record.rounds) or {}),
        "participation": _participation(record),
    }


def _participation(record: RunFiles) -> Answer | None:
    if not record.reported:
        return None
    shown = evenly(sorted(record.reported), BARS)
    return {
        "distinct": len(record.reported),
        "client": shown,
        "reported": [record.reported[k] for k in shown],
    }


def evenly(items: Sequence[int], most: int) -> list[int]:
    """At most this many of the items, evenly spread over them."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def world(record: RunFiles, day: str) -> Answer | None:
    """The rounds of one day of a simulated clock; None for a run that has none."""
    columns = record.columns
    closed = columns.get("world.closed_s")
    if not np.isfinite(closed).any():
        return None
    days = int(np.nanmax(closed) // DAY_S) + 1
    chosen = min(int(day) if day.isascii() and day.isdigit() and len(day) < 9 else 0, days - 1)
    begins, ends = chosen * DAY_S, (chosen + 1) * DAY_S
    inside = np.flatnonzero((closed >= begins) & (columns.get("world.began_s") < ends))
    shown = evenly(inside.tolist(), POINTS)
    names = [name for name in columns.names if name.startswith("world.")]
    values = {name.removeprefix("world."): columns.get(name)[shown] for name in names}
    return {
        "days": days,
        "day": chosen,
        "rounds": [place + 1 for place in shown],
        "in_all": len(inside),
        "values": {name: [_number(value) for value in each.tolist()] for name, each in values.items()},
        "totals": {name: columns.total(f"world.{name}") for name in ("spent_s", "wasted_s", "waited_s")},
        "accuracy": [_number(value) for value in columns.get("test.accuracy")[shown].tolist()],
    }


def as_json(value: Any) -> Any:
    """The same value, with numbers that JSON cannot express as text: a plan's B may be infinite.

    >>> as_json({"B": float("inf"), "stages": ["clip:1"], "lr": 0.1})
    {'B': 'inf', 'stages': ['clip:1'], 'lr': 0.1}
    """
    if isinstance(value, Mapping):
        return {str(name): as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else str(value)


def _number(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
