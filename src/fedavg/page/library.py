"""The runs below a folder: found, read in the background piece by piece, and viewed under one lock."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final

from fedavg.errors import RunDirError
from fedavg.page.record import MARKS, RunFiles, locked_inodes

#: Seconds between reads of the disk, and between searches for new runs.
LOOK_S: Final = 0.5
SEARCH_S: Final = 2.0
#: The depth of folders that are searched, and the most runs that are shown.
DEPTH: Final = 4
MOST: Final = 1000


class Library:
    """Thread-safe inside `looking`. `version` grows with every change that a view may show."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RunDirError(f"got '{root}'; expected a folder of runs, a run directory, or the address of a server")
        self.root = root
        self.version = 0
        self._records: dict[str, RunFiles] = {}
        self._lock = Lock()
        self._searched = -SEARCH_S
        self._stop = Event()
        self._thread = Thread(target=self._watch, name="page", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def looking(self) -> Iterator[dict[str, RunFiles]]:
        """The records by id, which do not change meanwhile."""
        with self._lock:
            yield self._records

    def refresh(self) -> bool:
        """Read the disk once; True if anything is new."""
        changed = self._search()
        locked = locked_inodes()
        for record in list(self._records.values()):
            with self._lock:
                changed |= record.refresh(locked)
        self.version += changed
        return changed

    def read_all(self) -> None:
        """Read everything that is there now."""
        while self.refresh():
            if not any(record.state.word == "reading" for record in self._records.values()):
                return

    def _watch(self) -> None:
        while not self._stop.is_set():
            changed = self.refresh()
            self._stop.wait(0.01 if changed else LOOK_S)

    def _search(self) -> bool:
        if monotonic() - self._searched < SEARCH_S:
            return False
        self._searched = monotonic()
        found = {name: path for path, name in _runs(self.root)}
        with self._lock:
            known = {record.name: record for record in self._records.values()}
            kept = {name: known.get(name) or RunFiles(path, name) for name, path in found.items()}
            self._records = {record.id: record for record in kept.values()}
        return known.keys() != kept.keys()


def _runs(root: Path) -> list[tuple[Path, str]]:
    """Directories that look like runs, with their names below the root, in order."""
    if _is_run(root):
        return [(root, root.resolve().name)]
    return sorted(_below(root, "", DEPTH), key=lambda found: found[1])[:MOST]


def _below(folder: Path, prefix: str, depth: int) -> Iterator[tuple[Path, str]]:
    """Unreadable and hidden folders are left out; links are not followed, because they may form cycles."""
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in entries:
        path, name = Path(entry.path), f"{prefix}{entry.name}"
        if _is_run(path):
            yield path, name
        elif depth > 1 and not entry.name.startswith("."):
            yield from _below(path, f"{name}/", depth - 1)


def _is_run(path: Path) -> bool:
    return any((path / mark).is_file() for mark in MARKS)
