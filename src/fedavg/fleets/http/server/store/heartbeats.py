"""Each replica's status, written every second to an unlogged table: for operators, not for decisions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text

from fedavg.fleets.http.server.store.connections import Connections

_TABLE: Final = (
    "CREATE UNLOGGED TABLE IF NOT EXISTS heartbeats (replica BIGINT PRIMARY KEY REFERENCES replicas (id)"
    " ON DELETE CASCADE, heard DOUBLE PRECISION NOT NULL, told TEXT NOT NULL)"
)
#: A replica that was dropped has no row to refer to; the lock keeps others from removing the row meanwhile.
_BEAT: Final = text(
    "INSERT INTO heartbeats SELECT id, EXTRACT(EPOCH FROM clock_timestamp()), :told FROM replicas WHERE id = :replica"
    " FOR KEY SHARE ON CONFLICT (replica) DO UPDATE SET heard = EXCLUDED.heard, told = EXCLUDED.told"
)
_ALL: Final = text(
    "SELECT r.id, r.url, EXTRACT(EPOCH FROM clock_timestamp()) - h.heard AS ago, h.told"
    " FROM replicas r JOIN heartbeats h ON h.replica = r.id ORDER BY r.url, r.id"
)


@dataclass(frozen=True)
class Heartbeat:
    """A replica's status some seconds ago; `term` is the one in which it led then, None if it did not lead."""

    replica: int
    url: str
    ago_s: float
    term: int | None
    status: Mapping[str, Any]


class Heartbeats:
    """Thread-safe. The table of replicas must exist."""

    def __init__(self, connections: Connections) -> None:
        self._db = connections
        with self._db.write("prepare for heartbeats") as connection:
            connection.exec_driver_sql(_TABLE)

    def beat(self, replica: int, term: int | None, status: Mapping[str, Any]) -> list[Heartbeat]:
        """Write this replica's status; returns those of all replicas."""
        told = json.dumps({"term": term, "status": dict(status)})
        with self._db.beside("tell of this replica") as connection:
            connection.execute(_BEAT, {"replica": replica, "told": told})
            found = connection.execute(_ALL).all()
        return [Heartbeat(row.id, row.url, max(0.0, float(row.ago)), **json.loads(row.told)) for row in found]
