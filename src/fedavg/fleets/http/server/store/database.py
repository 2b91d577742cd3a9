"""What differs between the kinds of database that can hold a run."""

from typing import Final, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from fedavg.fleets.http.server.store.rows import StoreError

#: How long one writer waits for another before it gives up, in seconds.
PATIENCE_S: Final = 30


class Database(Protocol):
    """One kind of database."""

    name: str
    blob_type: str
    #: The first statement of a transaction that writes: waits until no other writer is active.
    begin_writing: str

    def engine(self) -> Engine: ...

    def check(self, connection: Connection) -> None:
        """Refuses a damaged database."""

    def definitions(self, connection: Connection) -> str:
        """The tables and indexes as the database itself records them; empty if they are not kept in a file of ours."""

    def own(self, owner: str, writer: Connection) -> None:
        """Makes this process the owner of the run for as long as it, or this connection, lives."""

    def disown(self) -> None: ...

    def explain(self, error: DBAPIError) -> tuple[str, bool]:
        """What to do about a failure, and whether a retry may help."""


def owned(name: str, holder: str) -> StoreError:
    who = holder or "another process"
    return StoreError(f"{name} is in use by {who}; only one server may own a run: stop that one first")
