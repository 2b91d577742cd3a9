"""Bring your own data: lists, PyTorch datasets, folders, tables and Hugging Face datasets become `FederatedData`.

Numbers stay what they are, but for float64, which becomes float32, and integers other than uint8, which become int64.
Labels that are words are numbered in alphabetical order. Where no test set is given, the last examples of each client
are held out for it, as the paper does with Shakespeare (§3).
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedavg import trees
from fedavg.data.federated import ArrayData
from fedavg.data.partition import Partition, natural, parse_partition
from fedavg.data.structured import as_tree, assemble, is_structured, stacked
from fedavg.errors import DataError
from fedavg.ragged import Ragged
from fedavg.seeds import NONE, rng
from fedavg.types import Examples

#: The examples of one client, or of the test set: x (n, ...) and y (n, ...).
Pair = tuple[np.ndarray, np.ndarray]
#: What NumPy can make an array of: arrays, tensors, nested lists.
Values = np.ndarray | Tensor | Sequence[Any]

#: A file or sub-folder of this name holds the test set.
_TEST: Final = "test"
_HELD_OUT: Final = 0.2


class Columns(Protocol):
    """Anything with columns by name, such as a Hugging Face `datasets.Dataset`."""

    def __getitem__(self, name: str, /) -> Iterable[Any]: ...


def from_clients(
    clients: Sequence[tuple[Any, Any]],
    test: tuple[Any, Any] | None = None,
    held_out: float = _HELD_OUT,
    name: str = "own",
) -> ArrayData:
    """A list with (x, y) of each client: arrays, lists or tensors, or tuples or dicts of them. A list of rows of unlike
    lengths, such as texts, becomes a `Ragged`, which the task's `collate` pads."""
    if any(map(is_structured, (*(part for pair in clients for part in pair), *(test or ())))):
        return _structured(name, clients, test, held_out)
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in clients]
    return _assemble(name, pairs, None if test is None else (np.asarray(test[0]), np.asarray(test[1])), held_out)


def from_dataset(
    dataset: "Dataset[Any]",
    partition: str | Partition,
    clients: int,
    seed: int = 0,
    test: "Dataset[Any] | None" = None,
    held_out: float = _HELD_OUT,
    name: str = "own",
) -> ArrayData:
    """A PyTorch dataset of (x, y) with a length, dealt out by a partition such as "shards:2" (`fedavg data show`). Its
    x and y may be tuples or dicts; a partition that looks at labels then takes the first of y."""
    x, y = _collect(dataset)
    if is_structured(x) or is_structured(y):
        whole = Examples(as_tree(x, f"{name}: x", _tensor), as_tree(y, f"{name}: y", _tensor))
        labels = trees.leaves(whole.y)[0]
        by = labels.lengths if isinstance(labels, Ragged) else labels
        dealt = parse_partition(partition).deal(by.numpy(), clients, rng(seed, NONE, NONE, "partition"))
        own = [trees.take(whole, torch.from_numpy(np.asarray(part))) for part in dealt]
        return _structured(name, [(e.x, e.y) for e in own], None if test is None else _collect(test), held_out)
    parts = parse_partition(partition).deal(_numbered(y), clients, rng(seed, NONE, NONE, "partition"))
    pairs = [(x[part], y[part]) for part in parts]
    return _assemble(name, pairs, None if test is None else _collect(test), held_out)


def from_folder(folder: Path, label: str = "label", held_out: float = _HELD_OUT, name: str | None = None) -> ArrayData:
    """A file or sub-folder per client, in alphabetical order; one called `test` is the test set.

    Files are .npz with arrays x and y, or .csv or .parquet with a column `label` and the features in the others. All
    files of a sub-folder belong to its client.
    """
    entries = {entry.stem: entry for entry in sorted(_listing(folder)) if entry.is_dir() or entry.suffix in _READERS}
    test = entries.pop(_TEST, None)
    if not entries:
        raise DataError(f"{folder} holds no clients: expected sub-folders or files of {', '.join(_READERS)}.")
    pairs = [_read_entry(entry, label) for entry in entries.values()]
    return _assemble(name or folder.name, pairs, None if test is None else _read_entry(test, label), held_out)


def read_examples(path: Path, label: str = "label") -> Examples:
    """The examples of one client: a file, or all files of a folder, in the formats of `from_folder`."""
    if not path.exists():
        raise DataError(f"{path} does not exist: expected a file or a folder of {', '.join(_READERS)}.")
    if path.is_file() and path.suffix not in _READERS:
        raise DataError(f"{path} is not a file that can be read: expected one of {', '.join(_READERS)}.")
    x, y = _read_entry(path, label)
    return Examples(_tensor(x, f"{path}: x"), _tensor(_numbered(y), f"{path}: y"))


def from_table(
    path: Path,
    client: str,
    label: str,
    features: Sequence[str] | None = None,
    test: Path | None = None,
    held_out: float = _HELD_OUT,
    name: str | None = None,
) -> ArrayData:
    """A .csv or .parquet file with a column that says whose example each row is; the other columns are x.

    `test` is a second file with the same columns, of which the one for the client may be missing.
    """
    table = _read_table(path)
    others = [column for column in table if column not in (client, label)]
    x, y = _pair(table, label, features or others, path)
    parts = natural(_column(table, client, path))
    held = None if test is None else _pair(_read_table(test), label, features or others, test)
    return _assemble(name or path.stem, [(x[part], y[part]) for part in parts], held, held_out)


def from_huggingface(
    dataset: Columns,
    client: str,
    x: str | Sequence[str],
    y: str,
    test: Columns | None = None,
    held_out: float = _HELD_OUT,
    name: str = "own",
) -> ArrayData:
    """A Hugging Face `datasets.Dataset` with columns for the client, x (a number or an array of them) and y.

    With a list of columns x is a dict of them; columns whose rows differ in length, such as tokens, become `Ragged`.
    """
    if not isinstance(x, str) or _has_unlike_rows(dataset[x]):
        return _from_columns(dataset, client, x, y, test, held_out, name)
    values, labels, keys = (_array(dataset[column], column) for column in (x, y, client))
    held = None if test is None else (_array(test[x], x), _array(test[y], y))
    return _assemble(name, [(values[part], labels[part]) for part in natural(keys)], held, held_out)


def _from_columns(
    dataset: Columns, client: str, x: str | Sequence[str], y: str, test: Columns | None, held_out: float, name: str
) -> ArrayData:
    def pair(columns: Columns) -> tuple[Any, Any]:
        given = list(columns[x]) if isinstance(x, str) else {column: list(columns[column]) for column in x}
        labels = list(columns[y])
        return as_tree(given, f"{name}: x", _tensor), as_tree(labels, f"{name}: y", _tensor)

    whole = Examples(*pair(dataset))
    own = [trees.take(whole, torch.from_numpy(part)) for part in natural(_array(dataset[client], client))]
    return _structured(name, [(e.x, e.y) for e in own], None if test is None else pair(test), held_out)


def _has_unlike_rows(column: Iterable[Any]) -> bool:
    return is_structured(list(column))


def _structured(
    name: str, clients: Sequence[tuple[Any, Any]], test: tuple[Any, Any] | None, held_out: float
) -> ArrayData:
    def pair(x: Any, y: Any, whose: str) -> tuple[Any, Any]:
        return as_tree(x, f"{name}, {whose}: x", _tensor), as_tree(y, f"{name}, {whose}: y", _tensor)

    own = [pair(x, y, f"client {k}") for k, (x, y) in enumerate(clients)]
    return assemble(name, own, None if test is None else pair(*test, "test"), held_out)


def _assemble(name: str, clients: list[Pair], test: Pair | None, held_out: float) -> ArrayData:
    """One ArrayData of the pairs, in their order; `clients` lose their last examples where there is no test."""
    _check(name, clients, test)
    if test is None:
        clients, test = _hold_out(clients, held_out)
    x = np.concatenate([x for x, _ in clients])
    labels = np.concatenate([*(y for _, y in clients), test[1]])
    y = _tensor(_numbered(labels), f"{name}: y")
    sizes = [len(y) for _, y in clients]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return ArrayData(
        name, _tensor(x, f"{name}: x"), y[: len(x)], parts, Examples(_tensor(test[0], f"{name}: test x"), y[len(x) :])
    )


def _check(name: str, clients: list[Pair], test: Pair | None) -> None:
    if not clients:
        raise DataError(f"{name} has no clients: expected one pair (x, y) at least.")
    expected = clients[0][0].shape[1:]
    for who, (x, y) in [
        *((f"client {k}", pair) for k, pair in enumerate(clients)),
        *([("test", test)] if test else []),
    ]:
        if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
            raise DataError(f"{name}, {who}: x has shape {x.shape} and y {y.shape}; expected as many rows in both.")
        if x.shape[1:] != expected:
            raise DataError(
                f"{name}, {who}: an example has shape {x.shape[1:]}, client 0 has {expected}. Make them equal."
            )


def _hold_out(clients: list[Pair], fraction: float) -> tuple[list[Pair], Pair]:
    """The last examples of each client, one at least, make the test; a client with one example keeps it."""
    if not 0 < fraction < 1:
        raise DataError(f"held_out = {fraction}: expected a share between 0 and 1, or give a test set.")
    cuts = [len(y) - max(1, int(len(y) * fraction)) if len(y) > 1 else len(y) for _, y in clients]
    pairs = list(zip(clients, cuts, strict=True))
    test = np.concatenate([x[cut:] for (x, _), cut in pairs]), np.concatenate([y[cut:] for (_, y), cut in pairs])
    return [(x[:cut], y[:cut]) for (x, y), cut in pairs], test


def _numbered(labels: np.ndarray) -> np.ndarray:
    """Words as numbers, in alphabetical order; numbers as they are."""
    return np.unique(labels, return_inverse=True)[1] if labels.dtype.kind in "US" else labels


def _tensor(values: np.ndarray, what: str) -> Tensor:
    if values.dtype.kind not in "biuf":
        raise DataError(f"{what} has values of type {values.dtype}: expected numbers, as many in each row.")
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    elif values.dtype.kind in "iu" and values.dtype != np.uint8:
        values = values.astype(np.int64)
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))


def _collect(dataset: "Dataset[Any]") -> Pair:
    pairs = [dataset[index] for index in range(len(dataset))]  # type: ignore[arg-type]
    return stacked(x for x, _ in pairs), stacked(y for _, y in pairs)


def _array(values: Iterable[Any], column: str) -> np.ndarray:
    try:
        return np.asarray(list(values))
    except ValueError as error:
        raise DataError(f"column {column!r} has rows of different lengths: expected equal ones. Pad them.") from error


def _listing(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise DataError(f"can not list {folder}: {error.strerror}. Name a folder with a file per client.") from error


def _read_entry(entry: Path, label: str) -> Pair:
    files = sorted(f for f in entry.iterdir() if f.suffix in _READERS) if entry.is_dir() else [entry]
    if not files:
        raise DataError(f"{entry} holds no examples: expected files of {', '.join(_READERS)}.")
    pairs = [_READERS[file.suffix](file, label) for file in files]
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def _read_npz(path: Path, _: str) -> Pair:
    try:
        # No pickles: they could run code.
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["x"], arrays["y"]
    except (KeyError, ValueError, OSError) as error:
        raise DataError(f"{path}: {error}. Expected an .npz file with arrays of numbers x and y.") from error


def _read_labelled(path: Path, label: str) -> Pair:
    table = _read_table(path)
    return _pair(table, label, [column for column in table if column != label], path)


_READERS: Final = {".npz": _read_npz, ".csv": _read_labelled, ".parquet": _read_labelled}


def _read_table(path: Path) -> dict[str, np.ndarray]:
    """Columns by name. Those of a CSV are integers, else numbers, else words, by what all of their values are."""
    if path.suffix == ".parquet":
        return _read_parquet(path)
    with path.open(newline="", encoding="utf-8") as lines:
        header, *rows = list(csv.reader(lines)) or [[]]
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: {len(row)} values, expected {len(header)} as in the header.")
    return {column: _parse(np.array([row[at] for row in rows])) for at, column in enumerate(header)}


def _parse(words: np.ndarray) -> np.ndarray:
    for kind in (np.int64, np.float64):
        try:
            return words.astype(kind)
        except ValueError:
            continue
    return words


def _read_parquet(path: Path) -> dict[str, np.ndarray]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(f"{path} needs pyarrow, which is not installed: pip install pyarrow, or use CSV.") from error
    table = parquet.read_table(path)
    return {column: _array(table[column].to_pylist(), column) for column in table.column_names}


def _pair(table: Mapping[str, np.ndarray], label: str, features: Sequence[str], path: Path) -> Pair:
    columns = [_column(table, feature, path) for feature in features]
    for feature, column in zip(features, columns, strict=True):
        if column.dtype.kind not in "biuf":
            raise DataError(
                f"{path}: column {feature!r} has {str(column[0])!r}, expected numbers. "
                "Turn it into numbers, or name the columns that are features."
            )
    if not columns:
        raise DataError(f"{path} has no columns for x beside {', '.join(map(repr, table))}. Add some.")
    # A Parquet column may hold lists: each of their values is a feature.
    x = np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)
    return x.astype(np.float32), _column(table, label, path)


def _column(table: Mapping[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    if name not in table:
        raise DataError(f"{path} has no column {name!r}: it has {', '.join(map(repr, table))}.")
    return table[name]
