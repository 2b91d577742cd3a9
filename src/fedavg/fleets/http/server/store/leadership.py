"""Which of several replicas leads: the one whose session has the lock, and nobody after it was silent for a while.

The lock belongs to a session of its own, which the database ends when nothing is heard of it (`idle_session_timeout`):
a leader that died lets go at once, one that is paused after some seconds. What a paused leader would write afterwards
is refused by its term: each new leader counts it up, and every transaction of a leader checks it.
"""

import json
from contextlib import suppress
from typing import Final

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from fedavg.fleets.http.server.store.connections import LEADER, Connections, term_of, write_note
from fedavg.fleets.http.server.store.database import owned
from fedavg.fleets.http.server.store.postgresql import KIND_LOCK, OWNER_LOCK, PostgreSQL
from fedavg.fleets.http.server.store.rows import StoreError

#: Seconds of silence after which a leader is one no more. It is heard of several times in that time.
SILENT_S: Final = 2.5


class Leadership:
    """This replica's part in who leads. Not thread-safe: one thread asks."""

    def __init__(self, connections: Connections, name: str) -> None:
        database = connections.database
        if not isinstance(database, PostgreSQL):
            raise StoreError(f"{database.name}: replicas share a PostgreSQL database; expected postgresql://...")
        self._db, self._database, self._name = connections, database, name
        self._engine = database.engine(poolclass=NullPool)
        self._session: Connection | None = None

    def close(self) -> None:
        """The locks go with the session."""
        if self._session is not None:
            with suppress(DBAPIError):
                self._session.close()
            self._session = None
        self._engine.dispose()

    def attend(self) -> None:
        """Be one of the replicas: refused while a server has the run that is none."""
        with self._db.failing("be a replica"):
            self._live()

    def attempt(self, replica: int) -> int | None:
        """Lead, if nobody does: the new term. Called often enough, it also keeps the session that waits for it."""
        with self._db.failing("lead the replicas"):
            session = self._live()
            if not session.scalar(select(func.pg_try_advisory_lock(OWNER_LOCK))):
                return None
        with self._db.write("begin a term") as connection:
            term = term_of(connection) + 1
            write_note(connection, LEADER, json.dumps({"term": term, "replica": replica}))
        self._db.term = term
        return term

    def holds(self) -> bool:
        """Whether this replica still leads, as far as its session tells; to ask keeps the session alive."""
        if self._session is None:
            return False
        try:
            self._session.exec_driver_sql("SELECT 1")
        except DBAPIError:
            self._drop()
            return False
        return True

    def resign(self) -> None:
        """Lead no more: another one can at once."""
        self._db.term = None
        if self._session is not None:
            with suppress(DBAPIError):
                self._session.execute(select(func.pg_advisory_unlock(OWNER_LOCK)))
        self._drop()

    def _live(self) -> Connection:
        if self._session is not None and not self.holds():
            self._drop()
        if self._session is None:
            session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            session.exec_driver_sql(f"SET idle_session_timeout = '{int(1000 * SILENT_S)}ms'")
            session.execute(select(func.set_config("application_name", f"fedavg replica {self._name}"[:63], False)))
            if not session.scalar(select(func.pg_try_advisory_lock_shared(KIND_LOCK))):
                session.close()
                raise owned(self._database.name, "a server that is no replica")
            self._session = session
        return self._session

    def _drop(self) -> None:
        if self._session is not None:
            with suppress(DBAPIError):
                self._session.invalidate()
                self._session.close()
            self._session = None
