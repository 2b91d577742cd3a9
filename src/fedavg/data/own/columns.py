"""Own data in columns: files and data frames with a row per example, and Hugging Face datasets."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Union

from fedavg.data.federated import ArrayData
from fedavg.data.own.assemble import HELD_OUT, assembled, dealt
from fedavg.data.own.tables import as_table, examples_of
from fedavg.data.partition import Partition, natural
from fedavg.data.values import XY, as_array, as_column, rows_of
from fedavg.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame


class Columns(Protocol):
    """Anything with columns by name, such as a Hugging Face `datasets.Dataset`."""

    def __getitem__(self, name: str, /) -> Iterable[Any]: ...


def from_table(
    table: Union[str, Path, "DataFrame"],
    client: str | None = None,
    label: str = "label",
    features: Sequence[str] | None = None,
    test: Union[str, Path, "DataFrame", None] = None,
    held_out: float = HELD_OUT,
    name: str | None = None,
    partition: str | Partition | None = None,
    clients: int | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
) -> ArrayData:
    """A .csv or .parquet file, or a pandas DataFrame, with a row per example and the label in one column.

    The column `client` says whose example each row is; or `partition` deals the rows out to this many `clients`. The
    other columns are x, unless `features` names some. `test` is a second table with the same columns, of which the one
    for the client may be missing.

    >>> from pandas import DataFrame
    >>> rows = DataFrame({"who": ["ann", "ann", "bob"], "height": [1.5, 1.6, 2.0], "label": [0, 1, 1]})
    >>> data = from_table(rows, client="who", test=rows)
    >>> data.sizes.tolist(), data.client(1).x.tolist()
    ([2, 1], [[2.0]])
    """
    rows = as_table(table)
    others = () if client is None else (client,)
    pair = examples_of(rows, label, features, others)
    keys = None if client is None else rows.column(client)
    names = features or [column for column in rows.columns if column not in (label, *others)]
    held = None if test is None else examples_of(as_table(test), label, names)
    called = name or (Path(table).stem if isinstance(table, str | Path) else "own")
    return assembled(called, _divided(pair, keys, partition, clients, seed), held, held_out, classes)


def from_huggingface(
    dataset: Columns | Mapping[str, Columns],
    *,
    x: str | Sequence[str],
    y: str | Sequence[str],
    client: str | None = None,
    test: Columns | None = None,
    held_out: float = HELD_OUT,
    name: str = "own",
    partition: str | Partition | None = None,
    clients: int | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
) -> ArrayData:
    """A Hugging Face `datasets.Dataset` with columns for x (numbers, arrays, images, sequences) and y.

    A list of names makes a dict of inputs, as in x=["input_ids", "attention_mask"]: the module is called with them.

    The column `client` says whose example each row is; or `partition` deals the rows out to this many `clients`. Of a
    `DatasetDict` the split `train` is taken, and `test` for the test set, unless another is given.

    >>> columns = {"tokens": [[1, 2], [3, 4], [5, 6]], "label": [0, 1, 1], "who": ["ann", "ann", "bob"]}
    >>> data = from_huggingface(columns, x="tokens", y="label", client="who", test=columns)
    >>> data.sizes.tolist(), data.client(0).x.tolist()
    ([2, 1], [[1, 2], [3, 4]])
    """
    train, held = _splits(dataset, test)
    pair = _inputs(train, x), _inputs(train, y)
    keys = None if client is None else as_array(_read(train, client), client)
    tested = None if held is None else (_inputs(held, x), _inputs(held, y))
    return assembled(name, _divided(pair, keys, partition, clients, seed), tested, held_out, classes)


def _divided(pair: XY, keys: Any, partition: str | Partition | None, clients: int | None, seed: int) -> list[XY]:
    """A client for each key, or as many as a partition deals the examples out to."""
    if keys is not None:
        if partition is not None or clients is not None:
            raise DataError("got a column of clients and a partition or a number of clients; expected one of the two.")
        return [(rows_of(pair[0], part), rows_of(pair[1], part)) for part in natural(keys)]
    if partition is None or clients is None:
        raise DataError(
            "nothing says which client has which example: name the column with client=..., or deal the examples out "
            'with partition="iid", clients=10.'
        )
    return dealt(pair, partition, clients, seed)


def _splits(dataset: Any, test: Any) -> tuple[Any, Any]:
    """The training and the test set; a `DatasetDict` is a dict of datasets, which have `column_names` themselves."""
    splits = isinstance(dataset, Mapping) and all(hasattr(split, "column_names") for split in dataset.values())
    if not splits:
        return dataset, test
    if "train" not in dataset:
        raise DataError(
            f"the dataset has the splits {', '.join(map(repr, dataset))}; expected 'train'. Choose one of them."
        )
    return dataset["train"], test if test is not None else dataset.get("test")


def _inputs(dataset: Any, names: str | Sequence[str]) -> Any:
    return _read(dataset, names) if isinstance(names, str) else {name: _read(dataset, name) for name in names}


def _read(dataset: Any, column: str) -> Any:
    if not (hasattr(dataset, "column_names") or isinstance(dataset, Mapping)):
        raise DataError(f"got {type(dataset).__name__}; expected a datasets.Dataset, or a dict of columns.")
    known = getattr(dataset, "column_names", None) or list(dataset)
    if column not in known:
        raise DataError(f"the dataset has no column {column!r}: it has {', '.join(map(repr, known))}.")
    return as_column(dataset[column], f"column {column!r}")
