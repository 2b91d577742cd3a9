"""Locks on files that the system releases when their process ends, however it ends: on POSIX and on Windows.

A lock does not protect the file: a process that does not ask for it can read and write.
"""

import os
import time
from typing import Any, Final

#: Windows locks bytes of a file: one that no lock file ever has.
PLACE: Final = 1 << 30
#: Seconds between two looks, where the system cannot wake a process that waits for a lock.
LOOK_S: Final = 0.05


def try_lock(file: int, *, shared: bool = False) -> bool:
    """Whether this process has the lock now. A shared lock is one that others may share too (on POSIX)."""
    posix, windows = _modules()
    try:
        if posix:
            posix.flock(file, (posix.LOCK_SH if shared else posix.LOCK_EX) | posix.LOCK_NB)
        elif windows:
            os.lseek(file, PLACE, os.SEEK_SET)
            windows.locking(file, windows.LK_NBLCK, 1)
    except OSError:
        return False
    return True


def wait_for_lock(file: int) -> None:
    """Until this process has the lock."""
    posix, _ = _modules()
    if posix:
        posix.flock(file, posix.LOCK_EX)
        return
    while not try_lock(file):
        time.sleep(LOOK_S)


def _modules() -> tuple[Any, Any]:
    """What locks files here: `fcntl`, or `msvcrt`, or neither, where nothing can be locked."""
    try:
        import fcntl
    except ImportError:
        fcntl = None  # type: ignore[assignment]
    try:
        import msvcrt
    except ImportError:
        msvcrt = None  # type: ignore[assignment]
    return fcntl, msvcrt
