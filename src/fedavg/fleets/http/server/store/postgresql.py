"""A run's database on a PostgreSQL server."""

from secrets import token_hex
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, func, select
from sqlalchemy.exc import DBAPIError

from fedavg.fleets.http.server.store.database import PATIENCE_S, owned
from fedavg.fleets.http.server.store.rows import StoreError

#: The advisory locks: one for the owner of the run, or the leader of its replicas; one for the current writer; one that
#: replicas share and a single server holds exclusively.
OWNER_LOCK: Final = 0x6665_6461_7667_0001
WRITER_LOCK: Final = 0x6665_6461_7667_0002
KIND_LOCK: Final = 0x6665_6461_7667_0003
#: Seconds after which the database ends an idle transaction: its process may be paused while others wait.
IDLE_S: Final = 3


class PostgreSQL:
    """A PostgreSQL server. The owner's lock belongs to the session that writes: to lose one is to lose the other."""

    blob_type = "BYTEA"
    begin_writing = f"SELECT pg_advisory_xact_lock({WRITER_LOCK})"

    #: Classes of SQLSTATE: connection, transaction rollback, resources (a full disk), operator, system; lock timeout.
    _PASSING: Final = {
        "08": "look whether the server is there",
        "25": "a transaction was ended, since this process was silent in it: try again",
        "40": "try again",
        "53": "free space or raise the limit on its server",
        "57": "the server is stopping: wait until it is back",
        "58": "look at its server's disk",
        "55": "another process is writing: try again",
    }

    def __init__(self, url: URL, part: str | None = None) -> None:
        """`part` is the name of a schema, made when it is first used: letters, digits and _ only."""
        self._url = url.set(drivername="postgresql+psycopg")
        self._part = part
        self.name = url.render_as_string(hide_password=True) + (f" ({part})" if part else "")
        #: By this, the process recognises a session that it has lost.
        self._mark = f"fedavg-{token_hex(8)}"

    def engine(self, **options: Any) -> Engine:
        defaults: dict[str, object] = {
            "connect_timeout": 10,
            "keepalives_idle": PATIENCE_S,
            "tcp_user_timeout": 1000 * PATIENCE_S,
            "options": f"-c lock_timeout={PATIENCE_S}s -c idle_in_transaction_session_timeout={IDLE_S}s",
        }
        if self._part:
            defaults["options"] = f"{defaults['options']} -c search_path={self._part}"
        arguments = {name: value for name, value in defaults.items() if name not in self._url.query}
        try:
            return self._prepared(
                create_engine(self._url, pool_pre_ping=True, hide_parameters=True, connect_args=arguments, **options)
            )
        except ModuleNotFoundError as error:
            raise StoreError("PostgreSQL needs the psycopg package: pip install 'fedavg[postgres]'") from error

    def _prepared(self, engine: Engine) -> Engine:
        """Make every new connection use the schema of its part."""
        if self._part:
            make = f"CREATE SCHEMA IF NOT EXISTS {self._part}"

            @event.listens_for(engine, "connect", insert=True)
            def made(connection: Any, _: object) -> None:
                connection.execute(make)
                connection.commit()

        return engine

    def check(self, connection: Connection) -> None:
        """Nothing to do: PostgreSQL checks its own pages."""

    def definitions(self, connection: Connection) -> str:
        """Empty: the PostgreSQL server keeps them itself."""
        return ""

    def own(self, owner: str, writer: Connection) -> None:
        """Refused while another session holds the lock. Ends one that this process lost, so that a retry works."""
        mine = f"{self._mark} {owner}"[:63]
        with writer.begin():
            writer.execute(select(func.set_config("application_name", mine, False)))
            if writer.scalar(select(func.pg_try_advisory_lock(OWNER_LOCK))):
                if writer.scalar(select(func.pg_try_advisory_lock(KIND_LOCK))):
                    return
                writer.execute(select(func.pg_advisory_unlock(OWNER_LOCK)))
                raise owned(self.name, "replicas")
            pid, holder = self._holder(writer)
            if holder != mine:
                raise owned(self.name, holder.partition(" ")[2])
            writer.execute(select(func.pg_terminate_backend(pid)))
        raise StoreError(f"{self.name} still held a connection that was lost; it was ended: try again", retryable=True)

    @staticmethod
    def _holder(connection: Connection) -> tuple[int, str]:
        found = connection.exec_driver_sql(
            "SELECT a.pid, a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
            " JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()"
            " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
            f" AND l.classid = {OWNER_LOCK >> 32} AND l.objid = {OWNER_LOCK & 0xFFFFFFFF}"
        ).one_or_none()
        return (0, "") if found is None else (found.pid, found.application_name)

    def disown(self) -> None:
        """Nothing to do: the lock ended with the session."""

    def explain(self, error: DBAPIError) -> tuple[str, bool]:
        state = getattr(error.orig, "sqlstate", None)
        if state is None and (error.connection_invalidated or type(error.orig).__name__ == "OperationalError"):
            return "look whether the server is there and its URL is right", True
        if state is not None and state[:2] in self._PASSING:
            return self._PASSING[state[:2]], True
        return "the values or the schema are not what this version expects", False
