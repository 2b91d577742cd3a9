"""A picture of a day in a world: how many clients are there, what rounds did, and the day of single clients."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from fedavg.errors import FedAvgError
from fedavg.study.clockwork import Scene, Tick
from fedavg.world import make_world
from fedavg.world.closing import Fate
from fedavg.world.presence import DAY_S, HOUR_S, PresentNow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: How many clients have their own line.
SHOWN: Final = 40
_COLOURS: Final = {Fate.REPORTED: "#2e7d32", Fate.LATE: "#f9a825", Fate.DROPPED: "#c62828"}
_WORDS: Final = {Fate.REPORTED: "reported", Fate.LATE: "late", Fate.DROPPED: "dropped out"}
_THERE: Final = "#dfe6ec"
_GROUPS: Final = ("#1f4e79", "#7b5ea7", "#3b8ea5", "#c0504d", "#8a8d3b", "#b8762f")


def draw_day(scene: Scene, ticks: Sequence[Tick], path: Path, from_s: float = 0.0) -> None:
    """The 24 hours from a time on, as PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise FedAvgError("plots need matplotlib, which is not installed: pip install 'fedavg[plots]'") from None
    figure = Figure(figsize=(10, 8.5), layout="constrained")
    there, rounds, single = figure.subplots(3, 1, sharex=True, height_ratios=(1, 1, 2.4))
    within = [tick for tick in ticks if from_s <= tick.outcome.opened < from_s + DAY_S]
    _draw_there(there, within, from_s)
    _draw_rounds(rounds, within, from_s)
    _draw_single(single, scene, within, from_s)
    single.set_xlim(0, 24)
    single.set_xticks(range(0, 25, 3))
    single.set_xlabel("hour of the day (UTC)")
    figure.suptitle(
        f"A day in {make_world(scene.world)}, {scene.clients:,} clients, closing {scene.closing}", fontsize=10
    )
    figure.savefig(path, dpi=130)


def _draw_there(axes: "Axes", ticks: Sequence[Tick], from_s: float) -> None:
    hours = [_hour(tick.outcome.opened, from_s) for tick in ticks]
    names = list(ticks[0].row.groups) if ticks else []
    counts = [[tick.row.groups[name][0] for tick in ticks] for name in names]
    labels = [f"group {name}" for name in names] if len(names) > 1 else ["there"]
    axes.stackplot(hours, counts, labels=labels, colors=_GROUPS, alpha=0.75, step="post")
    _label(axes, "clients there", legend=len(names) <= len(_GROUPS))


def _draw_rounds(axes: "Axes", ticks: Sequence[Tick], from_s: float) -> None:
    """A bar for each attempt: as wide as it lasted, as high as the clients that it asked."""
    begin = np.array([_hour(tick.outcome.opened, from_s) for tick in ticks])
    width = np.array([tick.outcome.closed.at - tick.outcome.opened for tick in ticks]) / HOUR_S
    below = np.zeros(len(ticks))
    for fate, colour in _COLOURS.items():
        counts = np.array([np.count_nonzero(tick.outcome.closed.fates == fate) for tick in ticks])
        _draw_boxes(axes, begin, width, below, counts, colour, _WORDS[fate])
        below += counts
    _label(axes, "clients asked")


def _draw_single(axes: "Axes", scene: Scene, ticks: Sequence[Tick], from_s: float) -> None:
    """One line for each of some clients: when it was there, and its outcome when it was asked."""
    chosen = np.unique(np.linspace(0, scene.clients - 1, min(SHOWN, scene.clients)).astype(np.int64))
    groups = make_world(scene.world).groups(scene.clients)[chosen]
    places = {int(k): place for place, k in enumerate(chosen[np.argsort(groups, kind="stable")])}
    there = [
        (_hour(start, from_s), (end - start) / HOUR_S, places[k]) for k, start, end in _presence(scene, chosen, from_s)
    ]
    asked: dict[Fate, list[tuple[float, float, int]]] = {fate: [] for fate in _COLOURS}
    for tick in ticks:
        begin = tick.outcome.opened
        ends = np.minimum(begin + tick.outcome.seconds, tick.outcome.closed.at)
        for k, fate, end in zip(tick.errand.clients, tick.outcome.closed.fates, ends, strict=True):
            if int(k) in places:
                width = max(end - begin, 120.0) / HOUR_S  # a thinner box would be invisible
                asked[Fate(int(fate))].append((_hour(begin, from_s), width, places[int(k)]))
    for colour, lines in ((_THERE, there), *((colour, asked[fate]) for fate, colour in _COLOURS.items())):
        left, width, place = np.array(lines, dtype=float).reshape(-1, 3).T
        _draw_boxes(axes, left, width, place - 0.45, np.full(len(lines), 0.9), colour)
    _label(axes, f"{len(chosen)} of the clients, by group", legend=False)
    axes.set_yticks([])


def _presence(scene: Scene, chosen: np.ndarray, from_s: float) -> list[tuple[int, float, float]]:
    """The intervals of some clients within the day."""
    attendance = PresentNow(make_world(scene.world).presence(scene.clients, scene.seed))
    found, now, limit = [], from_s, from_s + DAY_S
    while now < limit:
        attendance.advance(now)
        start, end = attendance.start[chosen], attendance.end[chosen]
        found += [
            (int(k), max(s, from_s), min(e, limit)) for k, s, e in zip(chosen, start, end, strict=True) if s < limit
        ]
        now = float(end.min())
    return sorted(set(found))


def _draw_boxes(
    axes: "Axes",
    left: np.ndarray,
    width: np.ndarray,
    bottom: np.ndarray,
    height: np.ndarray,
    colour: str,
    label: str | None = None,
) -> None:
    """All boxes as one artist, arrays of shape (N,): a day may have tens of thousands."""
    from matplotlib.collections import PolyCollection

    right, top = left + width, bottom + height
    corners = np.stack([left, bottom, left, top, right, top, right, bottom], axis=1).reshape(-1, 4, 2)
    axes.add_collection(PolyCollection(list(corners), facecolors=colour, linewidths=0, label=label))
    axes.autoscale_view()


def _hour(at: float, from_s: float) -> float:
    return (at - from_s) / HOUR_S


def _label(axes: "Axes", text: str, legend: bool = True) -> None:
    axes.set_ylabel(text)
    axes.grid(alpha=0.25)
    if legend:
        axes.legend(loc="upper right", fontsize=8, ncols=3)
