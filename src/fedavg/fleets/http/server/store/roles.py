"""Operators' tokens, each with a role; stored as hashes."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import delete

from fedavg.fleets.http.server.store.connections import Connections
from fedavg.fleets.http.server.store.rows import StoreError
from fedavg.fleets.http.server.store.schema import roles
from fedavg.fleets.http.server.store.sealed import insert_row, one_row, rows

#: A reserved label: it stands for the operator's own token.
OPERATOR: Final = "operator"


@dataclass(frozen=True)
class RoleRow:
    """`made` and `expires` are in seconds since 1970 by the server's clock; `expires` is None for never."""

    hash: bytes
    role: str
    label: str
    made: int
    expires: int | None = None


class Roles:
    """The table of these tokens. Thread-safe."""

    def __init__(self, connections: Connections) -> None:
        self._db = connections

    def add(self, row: RoleRow) -> None:
        """A second token with the same label is refused."""
        with self._db.write("add a token with a role") as connection:
            if row.label == OPERATOR or one_row(connection, roles, roles.c.label == row.label) is not None:
                raise StoreError(
                    f"label: '{row.label}' is taken; expected one of its own, or withdraw that token first"
                )
            insert_row(connection, roles, **vars(row))

    def all(self) -> list[RoleRow]:
        with self._db.read("read the tokens with roles") as connection:
            found = rows(connection, roles, order=roles.c.label)
        return [RoleRow(bytes(row.hash), row.role, row.label, row.made, row.expires) for row in found]

    def remove(self, hash: bytes) -> None:
        with self._db.write("withdraw a token with a role") as connection:
            connection.execute(delete(roles).where(roles.c.hash == hash))
