"""What a server must not forget, in one database: SQLite (WAL) by default, PostgreSQL by URL.

Every change is one transaction, and all who write take turns (`BEGIN IMMEDIATE`, or an advisory lock that lasts as long
as the transaction), so no two of them, in whatever process, can see the same token or number as free. Every row is
under a digest. A single client's update never comes here.
"""

from fedavg.fleets.http.server.store.changes import ATTEMPTS_APART, ChangeLog
from fedavg.fleets.http.server.store.rows import (
    Change,
    ClientRow,
    Counted,
    Deposed,
    EnrolRefused,
    RoundRow,
    RunRow,
    StoreError,
    SubmittedRun,
    TokenRow,
    allows,
)
from fedavg.fleets.http.server.store.runs import Runs
from fedavg.fleets.http.server.store.store import Store

__all__ = [
    "ATTEMPTS_APART",
    "Change",
    "ChangeLog",
    "ClientRow",
    "Counted",
    "Deposed",
    "EnrolRefused",
    "RoundRow",
    "RunRow",
    "Runs",
    "Store",
    "StoreError",
    "SubmittedRun",
    "TokenRow",
    "allows",
]
