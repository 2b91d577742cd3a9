"""A run's database in one SQLite file."""

import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from fedavg.fleets.http.server.store.database import PATIENCE_S, owned
from fedavg.fleets.http.server.store.rows import StoreError
from fedavg.locks import try_lock

#: Seconds between retries where SQLite does not wait by itself.
RETRY_S: Final = 0.01
#: Large pages keep the chain of a state's pages short, and make a commit of megabytes faster than the usual 4 KiB.
PAGE_BYTES: Final = 32768


def _use_wal(connection: sqlite3.Connection) -> None:
    """If another connection does the same to a new file, SQLite refuses at once, whatever the timeout: so retry."""
    end = monotonic() + PATIENCE_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or monotonic() > end:
                raise
        sleep(RETRY_S)


class SQLite:
    """One file, in WAL mode, so that readers never wait for the writer. The owner's lock is on a file beside it."""

    blob_type = "BLOB"
    begin_writing = "BEGIN IMMEDIATE"

    _PASSING: Final = {
        sqlite3.SQLITE_FULL: "free space on its disk",
        sqlite3.SQLITE_IOERR: "look at its disk",
        sqlite3.SQLITE_BUSY: "another process is writing: try again",
        sqlite3.SQLITE_LOCKED: "another process is writing: try again",
        sqlite3.SQLITE_NOMEM: "free memory",
    }
    _LASTING: Final = {
        sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a copy",
        sqlite3.SQLITE_NOTADB: "the file is no SQLite database: restore it from a copy or choose another file",
        sqlite3.SQLITE_READONLY: "make the file and its directory writable",
        sqlite3.SQLITE_CANTOPEN: "make its directory and give this user access to it",
    }

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._lock_file: int | None = None

    def engine(self) -> Engine:
        self._make_private()
        engine = create_engine(
            URL.create("sqlite", database=str(self._path)),
            connect_args={"check_same_thread": False, "timeout": PATIENCE_S},
            hide_parameters=True,
        )
        event.listen(engine, "connect", self._prepare)
        return engine

    def _make_private(self) -> None:
        """Create the file ourselves, before SQLite does, so that only its user can read it.

        An existing file is left alone: opening and closing it would release SQLite's locks on it in this process.
        """
        if not self._path.is_file():
            os.close(self._opened(self._path))

    @staticmethod
    def _opened(path: Path) -> int:
        try:
            return os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot open {path}: {error.strerror}; make its directory and give this user access to it",
                retryable=error.errno in (errno.ENOSPC, errno.EDQUOT),
            ) from error

    @staticmethod
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # we begin transactions explicitly
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    def check(self, connection: Connection) -> None:
        found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
        if found != "ok":
            raise StoreError(f"{self.name} is damaged ({found}); restore it from a copy")

    def definitions(self, connection: Connection) -> str:
        kept = "SELECT coalesce(sql, name) FROM sqlite_master ORDER BY type, name"
        return "\n".join(connection.exec_driver_sql(kept).scalars())

    def own(self, owner: str, writer: Connection) -> None:
        if self._lock_file is not None:
            return
        file = self._opened(self._path.with_name(f"{self._path.name}.lock"))
        if not try_lock(file):
            os.lseek(file, 0, os.SEEK_SET)
            holder = os.read(file, 200).decode(errors="replace")
            os.close(file)
            raise owned(self.name, holder)
        with suppress(OSError):  # naming the holder is a courtesy: a full disk must not stop a server
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)
            os.write(file, owner.encode(errors="replace"))
        self._lock_file = file

    def disown(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def explain(self, error: DBAPIError) -> tuple[str, bool]:
        code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in self._PASSING:
            return self._PASSING[code], True
        return self._LASTING.get(code, "the values or the schema are not what this version expects"), False
