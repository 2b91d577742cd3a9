"""Curves of several runs in one picture, by round, bytes, real or simulated time."""

from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Final

import numpy as np

from fedavg.errors import FedAvgError
from fedavg.runlog.frames import flat_rows
from fedavg.study.compare import ReadRun, along, differing

_LABELS: Final = {
    "round": "round of communication",
    "bytes": "megabytes sent, both ways",
    "time": "seconds of computing",
    "simulated": "seconds of the simulated clock",
}
_UNITS: Final = {"bytes": 1e-6}


def plot_runs(runs: Sequence[ReadRun], path: Path, axis: str = "round", metric: str | None = None) -> None:
    """One line for each run; runs that differ only in their seed share a colour."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise FedAvgError("plots need matplotlib, which is not installed: pip install 'fedavg[plots]'") from None
    shown = metric or runs[0].metric
    options = differing([run.plan for run in runs])
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    colours: dict[str, str] = {}
    for run in runs:
        x, y = curve_of(run, axis, shown)
        kind = dumps({name: value for name, value in run.plan.items() if name != "seed"}, sort_keys=True)
        colour = colours.setdefault(kind, f"C{len(colours) % 10}")
        axes.plot(x * _UNITS.get(axis, 1.0), y, color=colour, linewidth=1.4, label=_label(run, options))
    axes.set_xlabel(_LABELS[axis])
    axes.set_ylabel(shown)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)


def curve_of(run: ReadRun, axis: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """The rounds that have the metric, along the axis, and its values there."""
    flat = flat_rows(run.rows)
    known = [index for index, row in enumerate(flat) if row.get(metric) is not None]
    if not known:
        names = dict.fromkeys(name for row in flat for name, value in row.items() if isinstance(value, float))
        raise FedAvgError(f"{run.path} has no '{metric}'; expected one of {', '.join(names) or 'its rounds'}")
    return along(run.rows, axis)[known], np.array([flat[index][metric] for index in known], float)


def _label(run: ReadRun, options: Sequence[str]) -> str:
    settings = " ".join(f"{name}={run.plan.get(name)}" for name in options)
    return f"{run.name}: {settings}" if settings else run.name
