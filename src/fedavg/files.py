"""Files that are there whole or not at all, and where those that can be made again are kept."""

import os
import sys
from pathlib import Path

from fedavg.errors import DiskError


def write_atomically(path: Path, data: bytes, *, durable: bool = True, private: bool = False) -> None:
    """All of `data` under this name, on the disk, or nothing: a crash leaves what was there before.

    What is not `durable` outlives the death of the process, but perhaps not that of the machine: no sync, much faster.
    A `private` file can at no time be read by another user.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        if private:
            partial.unlink(missing_ok=True)  # what a crash left behind may have another mode
            partial.touch(0o600, exist_ok=False)
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
        if durable:
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


def user_cache() -> Path:
    """This user's folder for what can be fetched or made again."""
    if sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "fedavg"
