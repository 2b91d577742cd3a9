"""Files and data frames as columns of values. A cell that does not fit is named by its row and its column."""

import csv
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np

from fedavg.data.values import XY, as_array
from fedavg.errors import DataError


@dataclass(frozen=True)
class Table:
    """Columns by name, all of one length. `name` is the file's; `first_row` is the number of the first row in it."""

    name: str
    columns: Mapping[str, np.ndarray]
    row: str = "row"
    first_row: int = 0

    def column(self, name: str) -> np.ndarray:
        """The values of a column: numbers in every row, or words in every row."""
        if name not in self.columns:
            raise DataError(f"{self.name} has no column {name!r}: it has {', '.join(map(repr, self.columns))}.")
        values = self.columns[name]
        return _as_numbers(values, f"{self.name}, column {name!r}", self) if values.dtype.kind in "US" else values

    def place(self, index: int) -> str:
        return f"{self.row} {self.first_row + index}"


def _as_numbers(words: np.ndarray, what: str, table: Table) -> np.ndarray:
    """Whole numbers, else numbers, else the words themselves; a column of both is a mistake in one of its cells."""
    for kind in (np.int64, np.float64):
        try:
            return words.astype(kind)
        except ValueError:
            continue
    numbers = np.array([_is_number(word) for word in words])
    if not numbers.any() and all(words):
        return words
    odd = int(np.flatnonzero(~numbers if numbers.any() else words == "")[0])
    expected = "a number as in other rows" if numbers.any() else "a word"
    raise DataError(f"{what}, {table.place(odd)}: got {str(words[odd])!r}; expected {expected}. Fix the cell.")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def examples_of(table: Table, label: str, features: Sequence[str] | None, others: Iterable[str] = ()) -> XY:
    """x of the features (all columns but the label and `others`, if they are not named) and y of the label."""
    names = features if features is not None else [name for name in table.columns if name not in (label, *others)]
    if not names:
        raise DataError(f"{table.name} has no columns for x beside {', '.join(map(repr, table.columns))}. Add some.")
    # A column of Parquet may hold lists: each of their values is a feature.
    columns = [_feature(table, name) for name in names]
    return np.concatenate(columns, axis=1).astype(np.float32), table.column(label)


def _feature(table: Table, name: str) -> np.ndarray:
    column = table.column(name)
    if column.dtype.kind not in "biuf":
        got = f"got {column[0]!s:.60}" if len(column) else "got nothing"
        raise DataError(
            f"{table.name}, column {name!r}, {table.place(0)}: {got}; expected a number. Turn words into numbers, or "
            "name the columns that are features."
        )
    return column.reshape(len(column), -1)


# Where tables come from.


def as_table(source: Any) -> Table:
    """A .csv or .parquet file by its path, or a pandas DataFrame."""
    if isinstance(source, str | Path):
        return read_table(Path(source))
    if hasattr(source, "columns") and hasattr(source, "to_numpy"):
        return _of_frame(source)
    raise DataError(f"got a table of type {type(source).__name__}; expected the path of a file, or a pandas DataFrame.")


def read_table(path: Path) -> Table:
    try:
        return _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}. Name a .csv or .parquet file.") from error
    except (
        ValueError,
        csv.Error,
    ) as error:  # of the decoder of UTF-8, or of pyarrow: the file is cut short, or another
        raise DataError(f"{path} is not a complete {path.suffix} file: {error}. Write it again.") from error


def _of_frame(frame: Any) -> Table:
    """Rows are called as the frame calls them: by its index."""
    missing = frame.isna().to_numpy()
    if missing.any():
        row, column = (int(place[0]) for place in np.nonzero(missing))
        name, index = frame.columns[column], frame.index[row]
        raise DataError(f"the table, column {name!r}, row {index}: the value is missing. Fill it in, or drop the row.")
    columns = {str(name): as_array(frame[name].tolist(), f"column {name!r}") for name in frame.columns}
    return Table("the table", columns)


def _read_csv(path: Path) -> Table:
    with path.open(newline="", encoding="utf-8") as lines:
        header, *rows = list(csv.reader(lines)) or [[]]
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: {len(row)} values, expected {len(header)} as in the header.")
    columns = {column: np.array([row[at].strip() for row in rows], str) for at, column in enumerate(header)}
    return Table(str(path), columns, "line", first_row=2)


def _read_parquet(path: Path) -> Table:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(f"{path} needs pyarrow, which is not installed: pip install pyarrow, or use CSV.") from error
    table = parquet.read_table(path)
    columns = {name: table[name].to_pylist() for name in table.column_names}
    for name, values in columns.items():
        if None in values:
            raise DataError(f"{path}, column {name!r}, row {values.index(None)}: the value is missing. Fill it in.")
    return Table(str(path), {name: as_array(values, f"{path}, column {name!r}") for name, values in columns.items()})


def _labelled(path: Path, label: str) -> XY:
    return examples_of(read_table(path), label, None)


def _npz(path: Path, _: str) -> XY:
    try:
        # No pickles: they could run code.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return arrays["x"], arrays["y"]
    except _NPZ_ERRORS as error:
        reason = str(error).partition(". ")[0]  # NumPy then says how to load what could run code
        raise DataError(f"{path}: {reason}. Expected an .npz file with arrays of numbers x and y.") from error


#: What NumPy raises for a file that is cut short, damaged, or of another kind.
_NPZ_ERRORS: Final = (KeyError, ValueError, TypeError, OSError, EOFError, BadZipFile, zlib.error)
#: How a file of examples is read, by its ending: its path and the column of the label to x and y.
READERS: Final = {".npz": _npz, ".csv": _labelled, ".parquet": _labelled}
