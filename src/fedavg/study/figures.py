"""The pictures of studies: a heat map of published figures beside ours, and bars by algorithm."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: rows -> columns -> value; None where nothing is measured.
Grid = Mapping[str, Mapping[str, float | None]]
#: Panels with more columns than this stand below each other, or the page would shrink them until nobody can read them.
_WIDE = 8


def heat_maps(grids: Mapping[str, Grid], path: Path, low: float = 0.0, high: float = 1.0) -> list[Path]:
    """Grids on one colour scale, wide ones below each other; unmeasured cells are empty."""
    figure, axes = _subplots(len(grids), [len(next(iter(grid.values()))) for grid in grids.values()])
    for place, (title, grid) in zip(axes, grids.items(), strict=True):
        _heat_map(place, title, grid, low, high)
    return _saved(figure, path)


def _heat_map(axes: "Axes", title: str, grid: Grid, low: float, high: float) -> None:
    rows, columns = list(grid), list(next(iter(grid.values())))
    values = [[grid[row][column] for column in columns] for row in rows]
    shown = [[float("nan") if value is None else value for value in row] for row in values]
    axes.imshow(shown, vmin=low, vmax=high, cmap="viridis", aspect="auto")
    axes.set_title(title, fontsize=9)
    axes.set_xticks(range(len(columns)), columns, fontsize=7, rotation=45 if len(columns) > 5 else 0, ha="center")
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if value is not None:
                colour = "white" if value < 0.6 else "black"
                axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)


def bars(groups: Mapping[str, Mapping[str, Sequence[float | None]]], labels: Sequence[str], path: Path) -> list[Path]:
    """For each group a panel; for each name in it bars side by side, one for each label."""
    figure, axes = _subplots(len(groups), [5] * len(groups))
    for place, (title, group) in zip(axes, groups.items(), strict=True):
        known = [value for values in group.values() for value in values if value is not None and value == value]
        for index, label in enumerate(labels):
            heights = [_height(values[index]) for values in group.values()]
            places = [x + 0.4 * (index - (len(labels) - 1) / 2) for x in range(len(group))]
            place.bar(places, heights, 0.38, label=label)
        place.set_xticks(range(len(group)), list(group), fontsize=7)
        place.set_ylim(min(known, default=0) - 1, max(known, default=99) + 1)
        place.set_title(title, fontsize=9)
        place.legend(fontsize=7)
    return _saved(figure, path)


def _height(value: float | None) -> float:
    return float("nan") if value is None else value


def _subplots(count: int, widths: Sequence[int]) -> tuple[Any, Sequence["Axes"]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows, columns = (count, 1) if max(widths) > _WIDE else (1, count)
    size = (max(3.2, 0.55 * max(widths)) * columns, 3.6 * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, constrained_layout=True)
    return figure, list(axes.flat)


def _saved(figure: Any, path: Path) -> list[Path]:
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    with pyplot.rc_context({"svg.hashsalt": path.stem}):  # the same picture is the same file
        for file in files:
            figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)
    return files
