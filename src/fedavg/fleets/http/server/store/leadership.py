"""Which of several replicas leads: the one whose session holds the lock, until that session is silent for too long.

The lock belongs to a separate session, which the database ends when it is idle (`idle_session_timeout`): a leader that
died loses the lock at once, a paused one after some seconds. What a paused leader writes afterwards is refused because
of its term: each new leader increments the term, and every transaction of a leader checks it.
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

#: Seconds of silence after which a leader is replaced. A live leader makes itself heard several times in that span.
SILENT_S: Final = 2.5


class Leadership:
    """This replica's part in the election of a leader. Not thread-safe: for one thread."""

    def __init__(self, connections: Connections, name: str) -> None:
        database = connections.database
        if not isinstance(database, PostgreSQL):
            raise StoreError(f"{database.name}: replicas share a PostgreSQL database; expected postgresql://...")
        self._db, self._database, self._name = connections, database, name
        self._engine = database.engine(poolclass=NullPool)
        self._session: Connection | None = None

    def close(self) -> None:
        """Close the session, which releases its locks."""
        if self._session is not None:
            with suppress(DBAPIError):
                self._session.close()
            self._session = None
        self._engine.dispose()

    def attend(self) -> None:
        """Become one of the replicas; refused while a server without replicas has the run."""
        with self._db.failing("be a replica"):
            self._live()

    def attempt(self, replica: int) -> int | None:
        """Become the leader if there is none; returns the new term. Frequent calls keep the waiting session alive."""
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
        """Whether this replica still leads, as far as its session knows; the call keeps the session alive."""
        if self._session is None:
            return False
        try:
            self._session.exec_driver_sql("SELECT 1")
        except DBAPIError:
            self._drop()
            return False
        return True

    def resign(self) -> None:
        """Stop leading, so that another replica can lead at once."""
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
