"""Folders in which no other user can change code before it is loaded."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EPERM
from functools import cache
from pathlib import Path
from stat import S_ISLNK, S_ISVTX
from tempfile import TemporaryDirectory

from fedavg.errors import DiskError
from fedavg.files import user_cache

log = logging.getLogger("fedavg.run")


def own_folder() -> Path | None:
    """Where builds are kept; None if another user could put code there, or if it cannot be created."""
    try:
        folder = user_cache() / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        unsafe = _unsafe_part(folder)
        if unsafe is None and not os.access(folder, os.W_OK):
            return None
    except (OSError, DiskError) as error:
        say(f"kernels are not kept, but built by each process: {getattr(error, 'strerror', None) or error}")
        return None
    if unsafe is None:
        return folder
    say(f"kernels are not kept in {folder}, but built by each process: others can change {unsafe} (chmod go-w)")
    return None


@contextmanager
def private_folder(within: Path | None) -> Iterator[Path]:
    """A new folder that only this user can reach, whatever is above it."""
    with TemporaryDirectory(dir=within, prefix="fedavg-") as made:
        folder = Path(made)
        unsafe = _unsafe_part(folder)
        if unsafe is not None:
            raise PermissionError(EPERM, f"others can change {unsafe}")
        yield folder


def _unsafe_part(folder: Path) -> Path | None:
    """The first folder on the path to this one that another user could change; None if there is none.

    Both the path as written and the path with links resolved are checked. In a folder with the sticky bit, such as
    /tmp, others can create entries, but not touch those of this user or of the system.
    """
    if not hasattr(os, "getuid"):
        return folder
    written, resolved = folder.absolute(), folder.resolve(strict=True)
    for part in (*reversed(written.parents), written, *reversed(resolved.parents), resolved):
        status = part.lstat()
        trusted = status.st_uid in (0, os.getuid())
        shared = status.st_mode & 0o022 and not (status.st_mode & S_ISVTX) and not S_ISLNK(status.st_mode)
        if not trusted or shared:
            return part
    status = resolved.stat()
    return resolved if status.st_uid != os.getuid() or status.st_mode & 0o022 else None


@cache
def say(message: str) -> None:
    """Print a message, once per process."""
    log.warning(message)
