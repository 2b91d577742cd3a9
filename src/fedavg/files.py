"""Files that are there whole or not at all."""

import os
from pathlib import Path

from fedavg.errors import DiskError


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """All of `data` under this name, on the disk, or nothing: a crash leaves what was there before.

    A private file can at no time be read by another user.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        if private:
            partial.unlink(missing_ok=True)  # what a crash left behind may have another mode
            partial.touch(0o600, exist_ok=False)
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DiskError(f"can not write {path}: {error.strerror}; free space or choose another directory") from error


def _sync_directory(directory: Path) -> None:
    """Makes the rename itself durable, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
