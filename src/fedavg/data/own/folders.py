"""Own data in files: a folder with a file or a sub-folder for each client, or the examples of one client."""

from pathlib import Path
from typing import Final

from fedavg.data.federated import ArrayData
from fedavg.data.own.assemble import HELD_OUT, assembled
from fedavg.data.own.tables import READERS
from fedavg.data.values import Pair, as_leaf, joined, numbered
from fedavg.errors import DataError
from fedavg.files import checked_path
from fedavg.types import Examples

#: A file or sub-folder of this name holds the test set.
_TEST: Final = "test"
_KINDS: Final = ", ".join(READERS)


def from_folder(
    folder: str | Path, label: str = "label", held_out: float = HELD_OUT, name: str | None = None
) -> ArrayData:
    """A file or sub-folder per client, in alphabetical order; one called `test` is the test set.

    Files are .npz with arrays x and y, or .csv or .parquet with a column `label` and the features in the others. All
    files of a sub-folder belong to its client.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for name in ("ann", "bob", "test"):
    ...         _ = Path(folder, f"{name}.csv").write_text("height,label\\n1.5,cat\\n1.9,dog\\n")
    ...     data = from_folder(folder)
    >>> data.sizes.tolist(), data.client(0).y.tolist()
    ([2, 2], [0, 1])
    """
    folder = checked_path(folder, "from_folder", DataError)
    entries = {entry.stem: entry for entry in sorted(_listing(folder)) if entry.is_dir() or entry.suffix in READERS}
    test = entries.pop(_TEST, None)
    if not entries:
        raise DataError(f"{folder} holds no clients: expected sub-folders or files of {_KINDS}.")
    pairs = [_read(entry, label) for entry in entries.values()]
    return assembled(name or folder.name, pairs, None if test is None else _read(test, label), held_out)


def read_examples(path: str | Path, label: str = "label") -> Examples:
    """The examples of one client: a file, or all files of a folder, in the formats of `from_folder`."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist: expected a file or a folder of {_KINDS}.")
    if path.is_file() and path.suffix not in READERS:
        raise DataError(f"{path} is not a file that can be read: expected one of {_KINDS}.")
    x, y = _read(path, label)
    return Examples(as_leaf(x, f"{path}: x"), as_leaf(numbered(y), f"{path}: y"))


def _listing(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise DataError(f"can not list {folder}: {error.strerror}. Name a folder with a file per client.") from error


def _read(entry: Path, label: str) -> Pair:
    files = sorted(f for f in entry.iterdir() if f.suffix in READERS) if entry.is_dir() else [entry]
    if not files:
        raise DataError(f"{entry} holds no examples: expected files of {_KINDS}.")
    pairs = [READERS[file.suffix](file, label) for file in files]
    return joined([x for x, _ in pairs]), joined([y for _, y in pairs])
