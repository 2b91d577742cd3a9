"""Figures of the studies of worlds, from their records alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fedavg.errors import FedAvgError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS: Final = ("#1f4e79", "#c0504d", "#2e7d32", "#7b5ea7", "#b8762f", "#3b8ea5")


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Accuracy over simulated hours: one panel for all examples, or one for each group of labels."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise FedAvgError("plots need matplotlib, which is not installed: pip install 'fedavg[plots]'") from None
    cases: Mapping[str, Any] = record["cases"]
    groups = len(next(iter(cases.values())).get("groups", ()))
    figure = Figure(figsize=(5.6 * max(groups, 1), 4.2), layout="constrained")
    panels = figure.subplots(1, max(groups, 1), squeeze=False, sharey=True)[0]
    for group, axes in enumerate(panels):
        for (name, case), colour in zip(cases.items(), _COLOURS, strict=False):
            values = case["groups"][group] if groups else case["accuracy"]
            axes.plot(case["hours"], values, color=colour, linewidth=1.4, label=name)
        _label(axes, f"group {group}: digits {5 * group} to {5 * group + 4}" if groups else "all examples")
    target = next(iter(cases.values()))["plan"].get("target")
    if target is not None:
        panels[0].axhline(float(target), color="#888888", linestyle="--", linewidth=1)
        panels[0].set_ylim(bottom=0.7)
    panels[0].set_ylabel("accuracy on the test set")
    panels[-1].legend(loc="lower right", fontsize=8)
    figure.suptitle(str(record["title"]), fontsize=11)
    figure.savefig(path, dpi=130)


def _label(axes: "Axes", title: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("simulated hours")
    axes.grid(alpha=0.25)
