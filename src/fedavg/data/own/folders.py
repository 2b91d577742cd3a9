"""Own data in files: a folder with a file or a sub-folder for each client, or the examples of one client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fedavg.data.federated import ArrayData
from fedavg.data.own.arrays import as_examples
from fedavg.data.own.assemble import HELD_OUT, assembled
from fedavg.data.own.tables import READERS
from fedavg.data.values import XY, joined
from fedavg.errors import DataError
from fedavg.files import checked_path
from fedavg.types import Examples

#: A file or sub-folder of this name holds the test set.
_TEST: Final = "test"
_KINDS: Final = ", ".join(READERS)


def from_folder(
    folder: str | Path,
    label: str = "label",
    held_out: float = HELD_OUT,
    name: str | None = None,
    classes: Sequence[str] | None = None,
) -> ArrayData:
    """A file or sub-folder per client, in alphabetical order; one called `test` is the test set.

    Files are .npz with arrays x and y, or .csv or .parquet with a column `label` and the features in the others. All
    files of a sub-folder belong to its client. Words as labels are numbered by `classes`, or in alphabetical order.

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
    return assembled(name or folder.name, pairs, None if test is None else _read(test, label), held_out, classes)


def read_examples(path: str | Path, label: str = "label", classes: Sequence[str] | None = None) -> Examples:
    """The examples of one client: a file, or all files of a folder, in the formats of `from_folder`.

    Labels that are words are numbered by `classes`, which a task declares.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist: expected a file or a folder of {_KINDS}.")
    if path.is_file() and path.suffix not in READERS:
        raise DataError(f"{path} is not a file that can be read: expected one of {_KINDS}.")
    return as_examples(_read(path, label), classes, str(path))


def file_stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Changes when the file, or one of the folder's, is rewritten."""
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
    return tuple((file.name, stat.st_mtime_ns, stat.st_size) for file in files for stat in [file.stat()])


def _listing(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise DataError(f"cannot list {folder}: {error.strerror}. Name a folder with a file per client.") from error


def _read(entry: Path, label: str) -> XY:
    files = sorted(f for f in entry.iterdir() if f.suffix in READERS) if entry.is_dir() else [entry]
    if not files:
        raise DataError(f"{entry} holds no examples: expected files of {_KINDS}.")
    pairs = [READERS[file.suffix](file, label) for file in files]
    return joined([x for x, _ in pairs]), joined([y for _, y in pairs])
