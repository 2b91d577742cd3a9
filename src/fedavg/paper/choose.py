"""What a user asks for on the command line: `--only` picks cells."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from fedavg.errors import FedAvgError
from fedavg.paper.cells import ALL_CELLS, CELLS, Cell


class Labelled(Protocol):
    """A cell of a table, or a line of a figure."""

    @property
    def labels(self) -> dict[str, str]: ...


T = TypeVar("T", bound=Labelled)


def choose(cells: Sequence[T], only: Sequence[str]) -> list[T]:
    """The cells that match any of the filters, in the paper's order; all if there is no filter.

    A filter is KEY=VALUE,...; a cell matches if all of them hold. Numbers compare as numbers: C=0.10 is C=0.1.
    """
    filters = [_parse(text) for text in only]
    chosen = [cell for cell in cells if not filters or any(f.items() <= cell.labels.items() for f in filters)]
    if not chosen:
        known = "; ".join(f"{key} {', '.join(_values(cells, key))}" for key in telling_keys(cells))
        raise FedAvgError(f"--only: got '{' '.join(only)}', which matches nothing; expected values such as {known}")
    return chosen


def choose_cells(table: int, only: Sequence[str]) -> list[Cell]:
    """Cells of a table; those with pixels in [0, 1], which are beside the paper's, only if a filter names pixels."""
    pool = ALL_CELLS if any("pixels" in _parse(text) for text in only) else CELLS
    return choose([cell for cell in pool if cell.table == table], only)


def _parse(text: str) -> dict[str, str]:
    return dict(_pair(part, text) for part in text.split(",") if part.strip())


def _pair(part: str, text: str) -> tuple[str, str]:
    key, equals, value = (piece.strip() for piece in part.partition("="))
    known = ("model", "partition", "algorithm", "C", "E", "B", "pixels", "target")
    if not equals or key not in known:
        raise FedAvgError(
            f"--only: got '{part}' in '{text}'; expected KEY=VALUE,... with keys of {', '.join(known)}, "
            "as in model=2nn,partition=iid,C=0.1"
        )
    return key, _plain(value)


def _plain(value: str) -> str:
    """A number as written in labels; other text unchanged."""
    if value == "∞":
        return "inf"
    try:
        return f"{float(value):g}"
    except ValueError:
        return value.lower()


def telling_keys(cells: Sequence[Labelled]) -> list[str]:
    """The keys in which these differ."""
    return [key for key in cells[0].labels if key != "table" and len(_values(cells, key)) > 1]


def _values(cells: Sequence[Labelled], key: str) -> list[str]:
    return list(dict.fromkeys(cell.labels[key] for cell in cells if key in cell.labels))
