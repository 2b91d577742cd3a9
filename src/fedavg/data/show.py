"""What a partition looks like: a table, a JSON document, a picture. Reads any `FederatedData`; changes nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE
from rich.table import Table

from fedavg.errors import DataError
from fedavg.types import FederatedData

#: Clients drawn as bars: more are thinner than a pixel or two.
_BARS = 50
#: Clients listed in the terminal.
_ROWS = 10


@dataclass(frozen=True)
class PartitionTable:
    """Who holds how much of what.

    `sizes` (K,) is n_k; `counts` (K, L) is how many examples of each label a client has, with the labels in `labels`
    (L,). Both label arrays are empty, L = 0, where targets are not classes (text, regression).
    """

    name: str
    sizes: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    test_size: int

    @property
    def labels_per_client(self) -> np.ndarray:
        """How many different labels each client holds, shape (K,)."""
        return np.asarray(np.count_nonzero(self.counts, axis=1))


def describe(data: FederatedData) -> PartitionTable:
    """The table of a data set. Text and other data without classes are described by their sizes alone."""
    labels, counts = (
        _label_counts(data) if _has_classes(data) else (np.empty(0, np.int64), np.empty((len(data), 0), np.int64))
    )
    return PartitionTable(data.name, data.sizes, labels, counts, len(data.test or ()))


def _has_classes(data: FederatedData) -> bool:
    y = (data.test or data.client(int(data.sizes.argmax()))).y
    return y.dim() == 1 and not y.dtype.is_floating_point and len(y) > 0 and len(torch.unique(y)) <= 1000


def _label_counts(data: FederatedData) -> tuple[np.ndarray, np.ndarray]:
    seen = [np.unique(data.client(k).y.numpy(), return_counts=True) for k in range(len(data))]
    labels = np.unique(np.concatenate([values for values, _ in seen]))
    counts = np.zeros((len(seen), len(labels)), np.int64)
    for row, (values, numbers) in zip(counts, seen, strict=True):
        row[np.searchsorted(labels, values)] = numbers
    return labels, counts


def summary(table: PartitionTable) -> dict[str, Any]:
    """The numbers of the whole: clients, examples, sizes, labels per client. Plain values, for JSON."""
    whole: dict[str, Any] = {
        "name": table.name,
        "clients": len(table.sizes),
        "train_examples": int(table.sizes.sum()),
        "test_examples": table.test_size,
        "client_size": _spread(table.sizes),
    }
    return whole | ({"labels_per_client": _spread(table.labels_per_client)} if len(table.labels) else {})


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def as_json(table: PartitionTable) -> dict[str, Any]:
    """The summary plus every client: its size and, where there are labels, their counts in the order of `labels`."""
    whole = summary(table) | {"sizes": table.sizes.tolist()}
    return whole | ({"labels": table.labels.tolist(), "counts": table.counts.tolist()} if len(table.labels) else {})


def as_table(table: PartitionTable, rows: int = _ROWS) -> Table:
    """The first clients, one a row, for the terminal."""
    lines = Table(
        title=f"{table.name}: {len(table.sizes):,} clients",
        title_justify="left",
        min_width=40,
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for heading in ("client", "n_k", *(["labels"] if len(table.labels) else [])):
        lines.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    shown = table.labels[:20]
    for label in shown:
        lines.add_column(str(label), justify="right", style="dim")
    for k in range(min(rows, len(table.sizes))):
        cells = [str(k), f"{table.sizes[k]:,}"]
        if len(table.labels):
            cells += [str(table.labels_per_client[k]), *(str(count or "·") for count in table.counts[k, : len(shown)])]
        lines.add_row(*cells)
    if len(table.sizes) > rows:
        lines.caption = f"and {len(table.sizes) - rows:,} more clients"
    return lines


def summary_lines(table: PartitionTable) -> list[str]:
    """The summary in words."""
    whole = summary(table)
    lines = [
        f"clients           {whole['clients']:,}",
        f"examples          {whole['train_examples']:,} to train, {whole['test_examples']:,} to test",
        f"examples/client   {_words(whole['client_size'])}",
    ]
    return lines + ([f"labels/client     {_words(whole['labels_per_client'])}"] if len(table.labels) else [])


def _words(spread: dict[str, float]) -> str:
    return f"min {spread['min']:,}, median {spread['median']:,g}, max {spread['max']:,}"


def plot(table: PartitionTable, path: Path) -> None:
    """A PNG: the labels of the first clients as stacked bars, and a histogram of all sizes."""
    try:
        # The object interface, so that no window system is touched.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise DataError("a plot needs matplotlib, which is not installed: pip install 'fedavg[plots]'.") from error
    figure = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    _bars(left, table)
    if len(np.unique(table.sizes)) > 1:
        right.hist(table.sizes, bins=min(30, len(np.unique(table.sizes))), color="#4477aa")
    else:
        right.bar([str(table.sizes[0])], [len(table.sizes)], width=0.3, color="#4477aa")
    for axis in (left.xaxis, left.yaxis, right.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    right.set(xlabel="examples per client", ylabel="clients", title=f"sizes of all {len(table.sizes):,} clients")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, format="png")


def _bars(axes: Any, table: PartitionTable) -> None:
    shown = np.arange(min(_BARS, len(table.sizes)))
    base = np.zeros(len(shown))
    many = len(table.labels) > 20
    columns = table.counts.T[:, shown] if len(table.labels) and not many else table.sizes[None, shown]
    names = [str(label) for label in table.labels] if len(columns) > 1 else [""]
    for name, column in zip(names, columns, strict=False):
        axes.bar(shown, column, bottom=base, width=0.9, label=name)
        base += column
    if len(columns) > 1:
        axes.legend(title="label", fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    axes.set(xlabel="client", ylabel="examples", title=f"{table.name}: the first {len(shown)} clients")
