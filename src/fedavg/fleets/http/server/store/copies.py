"""Copies of databases: made as SQLite files while a server writes, and restored to a file or to PostgreSQL."""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, delete, insert, make_url, text

from fedavg.fleets.http.server.store.connections import Connections
from fedavg.fleets.http.server.store.postgresql import PostgreSQL
from fedavg.fleets.http.server.store.rows import StoreError
from fedavg.fleets.http.server.store.schema import LATEST, found_schema, metadata
from fedavg.fleets.http.server.store.sealed import all_rows
from fedavg.fleets.http.server.store.store import Store

#: The PostgreSQL schemas that hold the runs of a service.
_RUN: Final = re.compile(r"run_([1-9][0-9]*)")


def schema_of(file: Path) -> int | None:
    """The schema of a database in a file; None if it is not one of ours."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as source:
        try:
            found = source.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        except sqlite3.DatabaseError:
            return None
    return int(found[0]) if found else None


def copy_file(source: Path, target: Path) -> None:
    """A consistent copy (SQLite's backup API), even while others write; it is complete or does not exist."""
    if schema_of(source) is None:
        raise StoreError(f"{source} is not a database of a server; expected the fleet.db of a run directory")
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=30)) as original,
        closing(sqlite3.connect(target)) as copy,
    ):
        original.backup(copy)
        found = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
    if found != "ok":
        raise StoreError(f"{source} is damaged ({found}); its copy would be as well")


@contextmanager
def snapshot(url: str) -> Iterator["Snapshot"]:
    """A consistent snapshot of a PostgreSQL database with all its runs."""
    database = PostgreSQL(make_url(url))
    connections = Connections(database)
    engine = database.engine(isolation_level="REPEATABLE READ")
    try:
        with connections.failing("make a copy"), engine.connect() as connection, connection.begin():
            connection.execute(text("SET TRANSACTION READ ONLY"))
            yield Snapshot(connection, database.name)
    finally:
        engine.dispose()
        connections.close()


class Snapshot:
    """The content of a PostgreSQL database at one moment."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, name

    def runs(self) -> list[int]:
        """The numbers of the runs that have their own schema."""
        names = self._connection.execute(text("SELECT nspname FROM pg_namespace")).scalars()
        return sorted(int(found[1]) for name in names if (found := _RUN.fullmatch(name)))

    def schema(self, run: int | None = None) -> int | None:
        """The schema step of a run, or of the service itself; later reads use its tables."""
        self._connection.execute(text(f"SET LOCAL search_path = {'public' if run is None else f'run_{run}'}"))
        return found_schema(self._connection)

    def copy(self, target: Path, run: int | None = None) -> None:
        """Copy all rows of one schema to a new SQLite file, each checked against its digest."""
        found = self.schema(run)
        if found != LATEST:
            raise StoreError(
                f"{self._name} has schema {found}; this version copies schema {LATEST}: make the copy by the version "
                "of fedavg that serves it"
            )
        with Store.open(target) as store, store.connections.write("write the copy") as connection:
            _fill(self._connection, connection)
        with closing(sqlite3.connect(target)) as copy:
            copy.execute("PRAGMA journal_mode = DELETE")


def copy_into(source: Path, url: str, run: int | None) -> None:
    """Copy a file's rows to a PostgreSQL schema that has no rows yet."""
    with Store.open(source) as original, Store.open(url, None if run is None else f"run_{run}") as store:
        if store.clients() or store.run() or store.note("admin-token"):
            raise StoreError(f"{store.name} is not empty; expected a new database to restore into")
        with original.connections.read("read the copy") as rows, store.connections.write("restore a copy") as into:
            _fill(rows, into)


def _fill(source: Connection, target: Connection) -> None:
    for table in metadata.sorted_tables:
        if table.name != "meta":
            target.execute(delete(table))
            for row in all_rows(source, table):
                target.execute(insert(table).values(**row._mapping))
