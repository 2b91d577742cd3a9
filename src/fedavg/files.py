"""Files that are there whole or not at all, and where those that can be made again are kept."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from fedavg.errors import DiskError, FedAvgError
from fedavg.locks import try_lock


def checked_path(value: object, what: str, error: type[FedAvgError]) -> Path:
    """A path that a user gave."""
    if not isinstance(value, str | os.PathLike):
        raise error(f"{what}: got {value!r}; expected a path, as text or pathlib.Path")
    return Path(value)


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
            sync(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DiskError(f"cannot write {path}: {error.strerror}; free space or choose another directory") from error


def sync(path: Path) -> None:
    """What is written to a file, or renamed and made in a folder, outlives the machine from here on."""
    if os.name != "posix" and path.is_dir():  # only POSIX can sync a folder
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, busy: FedAvgError, *, private: bool = False) -> Iterator[None]:
    """Only one process at a time has the lock file; the system releases it when that process ends, however it ends.

    A process that is forked meanwhile does not hold the lock: a worker that outlives its server keeps nobody waiting.
    `private`: nobody but this user can open the file.
    """
    with _opened_lock(path, 0o600 if private else 0o666) as file:
        if not try_lock(file.fileno()):
            raise busy
        _locks.add(file)
        try:
            yield
        finally:
            _locks.discard(file)


def _opened_lock(path: Path, mode: int) -> IO[str]:
    try:
        return open(path, "w", opener=partial(os.open, mode=mode))
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror}; expected a folder of this user") from None


#: Lock files that this process holds.
_locks: set[IO[str]] = set()


def _let_go_of_locks() -> None:
    """In a forked process: its copies of the lock files are closed; the parent's stay, and so does the lock."""
    for file in _locks:
        file.close()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_locks)


def user_cache() -> Path:
    """This user's folder for what can be fetched or made again."""
    if sys.platform == "darwin":
        folder = _home() / "Library" / "Caches"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local")
    else:
        named = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = named if named.is_absolute() else _home() / ".cache"
    return folder / "fedavg"


def _home() -> Path:
    try:
        home = Path.home()
    except RuntimeError:  # a user that the system does not know
        home = Path()
    if not home.is_absolute():
        raise DiskError("this user has no home folder; expected HOME to name one (or XDG_CACHE_HOME, or FEDAVG_DATA)")
    return home
