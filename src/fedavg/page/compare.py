"""Several runs side by side: what differs between their plans, which are repetitions, and their curves."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from json import dumps
from typing import Any, Final

import numpy as np

from fedavg.page.record import RunFiles
from fedavg.page.thin import POINTS, Curve, band, curve, thinned
from fedavg.study.axes import AXES
from fedavg.study.compare import RUNTIME

#: Columns that are not results of a round, and so are not offered as curves.
_NOT_DRAWN: Final = frozenset({"round"})


def group_of(plan: Mapping[str, Any]) -> str:
    """A name shared by plans that differ only in their seed."""
    counted = {name: value for name, value in plan.items() if name not in RUNTIME | {"seed"}}
    return sha256(dumps(counted, sort_keys=True, default=str).encode()).hexdigest()[:12]


def drawable(records: Iterable[RunFiles]) -> list[str]:
    """The columns of any of the runs that can be drawn: results first, costs last."""
    names = dict.fromkeys(name for record in records for name in record.columns.names if _is_drawn(name))
    return sorted(names, key=lambda name: (_rank(name), name))


def _is_drawn(name: str) -> bool:
    return name not in _NOT_DRAWN and not name.startswith("world.groups.")


def _rank(name: str) -> int:
    order = ("test.", "on_clients.metrics", "train.", "train_loss", "on_clients.spread", "epsilon", "metrics.")
    return next((place for place, start in enumerate(order) if name.startswith(start)), len(order))


def along(record: RunFiles, x: str) -> np.ndarray:
    """The chosen axis of a run at each of its rounds, shape (rounds,)."""
    if x == "round":
        return np.arange(1, record.rounds + 1, dtype=np.float64)
    return np.cumsum(sum((np.nan_to_num(record.columns.get(name)) for name in AXES[x]), np.zeros(record.rounds)))


def curves(records: Sequence[RunFiles], x: str, y: str, points: int = POINTS) -> list[dict[str, Any]]:
    """A curve for each run that has such points, thinned."""
    full = [(record, curve(along(record, x), record.columns.get(y))) for record in records]
    return [{"run": record.id, **_points(thinned(each, points))} for record, each in full if len(each.x)]


def bands(records: Sequence[RunFiles], x: str, y: str, points: int = POINTS) -> list[dict[str, Any]]:
    """For plans that were run with several seeds: mean, lowest and highest of their curves."""
    groups: dict[str, list[RunFiles]] = {}
    for record in records:
        groups.setdefault(group_of(record.plan), []).append(record)
    found = []
    for group, members in groups.items():
        known = [each for record in members if len((each := curve(along(record, x), record.columns.get(y))).x)]
        over = band(known, points) if len(known) > 1 else None
        if over:
            values = {"x": over.x, "mean": over.mean, "low": over.low, "high": over.high}
            listed = {name: _rounded(each) for name, each in values.items()}
            found.append({"group": group, "runs": [record.id for record in members], **listed})
    return found


def _points(thin: Curve) -> dict[str, list[float]]:
    return {"x": _rounded(thin.x), "y": _rounded(thin.y)}


def _rounded(values: np.ndarray) -> list[float]:
    """Six digits are more than a screen shows."""
    return [float(f"{value:.6g}") if abs(value) < 1e15 else float(value) for value in values.tolist()]
