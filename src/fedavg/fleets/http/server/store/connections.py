"""The connections to a run's database: the readers, the one writer, and how each of them may fail."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from fedavg.fleets.http.server.store.database import Database
from fedavg.fleets.http.server.store.rows import Deposed, StoreError
from fedavg.fleets.http.server.store.schema import notes
from fedavg.fleets.http.server.store.sealed import DamagedRow, insert_row, one_row, update_rows

#: The note that says which replica leads, and in which term.
LEADER: Final = "leader"


class Connections:
    """Usable from several threads, but not across a fork."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._engine = database.engine()
        self._lock = RLock()
        self._writer: Connection | None = None
        self._owner: str | None = None
        #: The term in which this process leads replicas; None while it does not.
        self.term: int | None = None
        #: Called in every transaction that writes, before it is committed.
        self.on_write: Callable[[Connection], None] = lambda _: None

    def close(self) -> None:
        with self._lock:
            self._drop_writer()
            self.database.disown()
            self._engine.dispose()

    def acquire(self, owner: str) -> None:
        """Makes this process the only writer until it ends; refused while another one lives."""
        with self._lock, self.failing("take the run"):
            self.database.own(owner, self._live_writer())
            self._owner = owner

    @contextmanager
    def leading(self, doing: str) -> Iterator[Connection]:
        """A transaction that only the leader may make. A paused leader that has been replaced gets `Deposed`."""
        with self.write(doing) as connection:
            if self.term is not None:
                check_term(connection, self.term, doing)
            yield connection

    @contextmanager
    def beside(self, doing: str) -> Iterator[Connection]:
        """A transaction on a separate connection, which does not wait its turn among the writers."""
        with self.failing(doing), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self, doing: str) -> Iterator[Connection]:
        with self.failing(doing), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self, doing: str) -> Iterator[Connection]:
        """A transaction on the one connection that writes: committed at the end, rolled back by any exception."""
        with self._lock, self.failing(doing):
            connection = self._live_writer()
            with connection.begin():
                connection.exec_driver_sql(self.database.begin_writing)
                yield connection
                self.on_write(connection)

    def _live_writer(self) -> Connection:
        """The one connection that writes. If it was lost, it is reopened and takes ownership again."""
        if self._writer is not None and not _answers(self._writer):
            self._drop_writer()
        if self._writer is None:
            writer = self._engine.connect()
            try:
                if self._owner is not None:
                    self.database.own(self._owner, writer)
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.invalidate()  # never back into the pool: its session may hold a lock
            self._writer.close()
            self._writer = None

    @contextmanager
    def failing(self, doing: str) -> Iterator[None]:
        """Every database failure leaves this module as a `StoreError`."""
        where = f"cannot {doing} in {self.database.name}"
        try:
            yield
        except DamagedRow as error:
            raise StoreError(f"{self.database.name}: {error}; restore the database from a copy") from error
        except DBAPIError as error:
            remedy, retryable = self.database.explain(error)
            cause = (str(error.orig).splitlines() or [type(error.orig).__name__])[0]
            raise StoreError(f"{where}: {cause}; {remedy}", retryable=retryable) from error
        except PoolTimeout as error:
            raise StoreError(f"{where}: every connection is busy; try again", retryable=True) from error
        except (SQLAlchemyError, OverflowError, UnicodeError) as error:
            raise StoreError(f"{where}: {error}; a value does not fit its column") from error


def write_note(connection: Connection, key: str, value: str) -> None:
    if not update_rows(connection, notes, notes.c.key == key, value=value):
        insert_row(connection, notes, key=key, value=value)


def term_of(connection: Connection) -> int:
    """The term of the latest leader, 0 before the first."""
    return int(_leader(connection).get("term", 0))


def check_term(connection: Connection, term: int, doing: str) -> None:
    """`Deposed` unless the latest leader is the one of this term."""
    if term != term_of(connection):
        raise Deposed(f"cannot {doing}: another replica leads, in a later term than {term}")


def next_term(connection: Connection, of_service: int | None = None) -> int:
    """Begin a new term of a run: whoever led it before can no longer write. Returns its number.

    `of_service` is the term in which replicas of the run's service are led. A run that has been led in a later one is
    refused: its new leader must not be shut out by an earlier one that was only paused.
    """
    before = _leader(connection)
    latest = before.get("of_service", 0)
    if of_service is not None and of_service < latest:
        raise Deposed(f"cannot lead the run: another replica does, in a later term than {of_service}")
    term = int(before.get("term", 0)) + 1
    write_note(connection, LEADER, json.dumps({"term": term, "of_service": of_service or latest}))
    return term


def _leader(connection: Connection) -> dict[str, int]:
    row = one_row(connection, notes, notes.c.key == LEADER)
    found: dict[str, int] = {} if row is None else json.loads(row.value)
    return found


def _answers(connection: Connection) -> bool:
    """Whether the server at the other end of the connection still answers. No transaction may be open."""
    if connection.invalidated or connection.closed:
        return False
    try:
        connection.exec_driver_sql("SELECT 1")
        connection.rollback()
    except DBAPIError:
        return False
    return True
