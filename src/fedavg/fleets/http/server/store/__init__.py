"""A server's durable data, in one database: SQLite (WAL) by default, PostgreSQL by URL.

Every change is one transaction, and writers take turns (`BEGIN IMMEDIATE`, or an advisory lock that lasts as long as
the transaction), so no two of them, in any process, can see the same token or number as free. Every row has a digest.
A single client's update is never stored here.
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
