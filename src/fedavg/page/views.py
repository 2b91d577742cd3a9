"""What the page asks for, as plain values for JSON. It shows what is on record, and adds nothing to it."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from fedavg.page.compare import AXES, bands, curves, differing, drawable, group_of
from fedavg.page.record import Record

Answer = dict[str, Any]


def index(records: Sequence[Record], root: Path) -> Answer:
    """All runs with their states and totals, what can be drawn, and the options in which their plans differ."""
    plans = [record.plan for record in records if record.plan]
    return {
        "root": str(root),
        "runs": [listed(record) for record in records],
        "options": differing(plans) if len(plans) > 1 else [],
        "columns": drawable(records),
        "axes": list(AXES),
    }


def listed(record: Record) -> Answer:
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
        "plan": plan,
        "summary": record.summary,
    }


def drawn(records: Sequence[Record], x: str, y: str) -> Answer:
    """The curves of runs, and the bands over those that differ in their seeds alone."""
    return {"x": x, "y": y, "curves": curves(records, x, y), "bands": bands(records, x, y)}


def one_round(record: Record, round: int) -> Answer | None:
    """What is on record of a round, with what the plan allows it; None if there is no such round."""
    row = record.row(round)
    if row is None:
        return None
    plan = record.plan
    return {
        "run": record.id,
        "round": round,
        "rounds": record.rounds,
        "row": row,
        "codec": plan.get("codec"),
        "downlink": plan.get("downlink"),
        "secagg": plan.get("secagg"),
        "budget": plan.get("dp_epsilon"),
        "private": is_private(plan, row),
    }


def is_private(plan: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """True where a single client's numbers may not be seen."""
    return plan.get("secagg", "none") != "none" or bool(row.get("ledger"))


def _number(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
