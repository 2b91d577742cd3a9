"""What replicas of one server share while they run, besides the record of the run itself.

These tables are unlogged: when the database itself crashes, or another instance takes over, they come back empty, and
the epoch that requests are signed for, every counter, every replica and every claim are lost. So nothing that was
signed or claimed before counts any more: clients sign again, and resend the updates that they kept. A slightly stale
copy would be worse: it would accept a request, or an update, a second time.

An update is claimed before it is added to a sum, by a row that names the client and the replica that has it. The row
is unique, so no update is in two sums; and it is deleted with the row of its replica, so that an update whose sum is
lost can be claimed again.

While devices judge the model of a round, the evaluation is the attempt that is open for claims, under a separate
number. The claims of the round itself stay: if the leader dies meanwhile, replicas still have their parts of its sum.
"""

import json
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, select, text
from sqlalchemy.exc import IntegrityError

from fedavg.fleets.http.protocol.keys import WINDOW, SignatureRefused
from fedavg.fleets.http.protocol.messages import JUDGING
from fedavg.fleets.http.server.rounds import Receipt
from fedavg.fleets.http.server.store import progress
from fedavg.fleets.http.server.store.connections import Connections
from fedavg.fleets.http.server.store.enrolment import client_row
from fedavg.fleets.http.server.store.rows import ClientRow, RoundRow, StoreError
from fedavg.fleets.http.server.store.schema import clients, notes, run
from fedavg.fleets.http.server.store.sealed import one_row, rows

#: The note that says that the run is over.
DONE: Final = "done"

_TABLES: Final = (
    # One row: the epoch, and the attempt that is open for claims. `version` grows with each change that replicas need.
    "CREATE UNLOGGED TABLE IF NOT EXISTS head (id INTEGER PRIMARY KEY CHECK (id = 1), epoch TEXT NOT NULL,"
    " version BIGINT NOT NULL, round BIGINT NOT NULL, attempt BIGINT NOT NULL, goal BIGINT NOT NULL,"
    " cap DOUBLE PRECISION NOT NULL, begun DOUBLE PRECISION NOT NULL, sealed BOOLEAN NOT NULL,"
    " claimed BIGINT NOT NULL)",
    "CREATE UNLOGGED TABLE IF NOT EXISTS counters (k BIGINT PRIMARY KEY, highest BIGINT NOT NULL,"
    f" seen BIT({WINDOW}) NOT NULL)",
    "CREATE UNLOGGED TABLE IF NOT EXISTS replicas (id BIGINT PRIMARY KEY, url TEXT NOT NULL, key BYTEA NOT NULL,"
    " certificate TEXT)",
    "CREATE UNLOGGED TABLE IF NOT EXISTS claims (round BIGINT NOT NULL, attempt BIGINT NOT NULL, k BIGINT NOT NULL,"
    " replica BIGINT REFERENCES replicas (id) ON DELETE CASCADE, why TEXT, PRIMARY KEY (round, attempt, k))",
    "CREATE INDEX IF NOT EXISTS claims_by_replica ON claims (replica)",
    # At most one row: which clients judge which model, and the replica that has it.
    "CREATE UNLOGGED TABLE IF NOT EXISTS judging (id INTEGER PRIMARY KEY CHECK (id = 1), round BIGINT NOT NULL,"
    " attempt BIGINT NOT NULL, model TEXT NOT NULL, clients TEXT NOT NULL, replica BIGINT NOT NULL)",
)
_NEW_HEAD: Final = text("INSERT INTO head VALUES (1, :epoch, 1, 0, 0, 0, 0, 0, FALSE, 0) ON CONFLICT (id) DO NOTHING")
#: A counter is used up in one statement: bit i, from the right, stands for the counter i below the highest.
_USE: Final = text(
    f"""
    WITH used AS (
        INSERT INTO counters AS c (k, highest, seen)
        SELECT :k, :counter, 1::bit({WINDOW}) FROM head WHERE epoch = :epoch
        ON CONFLICT (k) DO UPDATE SET
            highest = GREATEST(c.highest, :counter),
            seen = CASE
                WHEN :counter - c.highest >= {WINDOW} THEN 1::bit({WINDOW})
                WHEN :counter > c.highest THEN (c.seen << (:counter - c.highest)::int) | 1::bit({WINDOW})
                ELSE c.seen | (1::bit({WINDOW}) << (c.highest - :counter)::int)
            END
        WHERE :counter > c.highest
            OR (c.highest - :counter < {WINDOW}
                AND (c.seen & (1::bit({WINDOW}) << (c.highest - :counter)::int)) = 0::bit({WINDOW}))
        RETURNING c.highest
    )
    SELECT head.epoch, head.version, (SELECT highest FROM used) AS used,
        (SELECT highest FROM counters WHERE k = :k) AS highest
    FROM head
    """
)


@dataclass(frozen=True)
class ReplicaRow:
    """A replica, from when it joins until it leaves or is dropped; `certificate` is PEM, None without TLS."""

    id: int
    url: str
    key: bytes
    certificate: str | None


@dataclass(frozen=True)
class Judges:
    """Which clients judge a model, identified by its SHA-256, and the replica that has it."""

    model: str
    clients: tuple[int, ...]
    replica: int


@dataclass(frozen=True)
class Head:
    """What replicas poll continually."""

    epoch: str
    version: int
    claimed: int
    #: Whether the replica that polls is still a member.
    member: bool


@dataclass(frozen=True)
class SharedView:
    """Everything that replicas must agree on, as it was at one moment."""

    head: Head
    last_round: int
    #: The attempt that is open for claims; if it judges a model, `model_at` is the replica that has the model.
    open: RoundRow | None
    model_at: ReplicaRow | None
    #: For the open attempt: the largest weight of an update, when it was opened by the database's clock and for how
    #: long it has been open, whether it is sealed.
    cap: float
    begun: float
    age_s: float
    sealed: bool
    #: Which clients are in which replica's sum, and which failed and why.
    claims: Mapping[int, int]
    failed: Mapping[int, str]
    #: Clients that have changed since the last view, and the number of the last change.
    clients: tuple[ClientRow, ...]
    changed: int
    done: str | None
    #: The digest of the plan that the open attempt is of; None before the run is begun.
    plan: str | None


class Together:
    """The shared tables. Thread-safe."""

    def __init__(self, connections: Connections) -> None:
        self._db = connections
        with self._db.write("prepare for replicas") as connection:
            for statement in _TABLES:
                connection.exec_driver_sql(statement)
        self._db.on_write = _noticed
        self.epoch()

    def epoch(self) -> str:
        """The epoch that requests are signed for; a new one if it was lost."""
        with self._db.beside("read the epoch") as connection:
            connection.execute(_NEW_HEAD, {"epoch": secrets.token_urlsafe(16)})
            return str(connection.scalar(text("SELECT epoch FROM head")))

    # Replays

    def use(self, k: int, epoch: str, counter: int) -> int:
        """Use up a client's counter, once among all replicas; returns the version that the replica should have."""
        with self._db.beside("count a request") as connection:
            row = connection.execute(_USE, {"k": k, "counter": counter, "epoch": epoch}).one_or_none()
        if row is None or row.epoch != epoch:
            raise SignatureRefused("stale-epoch", "the request was signed for an earlier epoch; sign it again")
        if row.used is None:
            old = row.highest is not None and row.highest - counter >= WINDOW
            what = f"is {row.highest - counter} behind" if old else "was used already"
            raise SignatureRefused(
                "too-old" if old else "replayed", f"counter {counter} {what}; sign with a new one", row.highest
            )
        return int(row.version)

    # Members

    def join(self, row: ReplicaRow) -> None:
        with self._db.beside("join the replicas") as connection:
            connection.execute(text("INSERT INTO replicas VALUES (:id, :url, :key, :certificate)"), vars(row))
            _noticed(connection)

    def certify(self, replica: int, certificate: str) -> None:
        """Store other certificates, PEM, by which a replica is known."""
        with self._db.beside("renew a replica's certificate") as connection:
            known = {"certificate": certificate, "id": replica}
            connection.execute(text("UPDATE replicas SET certificate = :certificate WHERE id = :id"), known)

    def leave(self, replica: int) -> None:
        """Remove this replica; its part of the sum is lost."""
        with self._db.beside("leave the replicas") as connection:
            _remove(connection, [replica])

    def replicas(self) -> list[ReplicaRow]:
        with self._db.beside("read the replicas") as connection:
            found = connection.execute(text("SELECT id, url, key, certificate FROM replicas ORDER BY id")).all()
        return [_replica_row(row) for row in found]

    def give_up(self, replicas: Collection[int]) -> None:
        """Drop replicas, by the leader's decision: their parts of the sum are void and can be claimed again."""
        with self._db.leading("give replicas up") as connection:
            _remove(connection, replicas)

    # Claims

    def claim(self, replica: int, round: int, attempt: int, k: int) -> Receipt:
        """Claim a client's update for this replica, which may add it only if this returns ACCEPTED."""
        this = {"round": round, "attempt": attempt, "k": k, "replica": replica}
        with self._db.beside("claim an update") as connection:
            verdict = _claimable(connection, this)
            if verdict is Receipt.ACCEPTED:
                try:
                    connection.execute(_CLAIM, this)
                except IntegrityError:
                    raise StoreError("this replica was given up meanwhile; it joins anew", retryable=True) from None
                connection.exec_driver_sql("UPDATE head SET claimed = claimed + 1")
            return verdict

    def release(self, replica: int, round: int, attempt: int, k: int) -> None:
        """Give back a claim on an update that could not be added."""
        this = {"round": round, "attempt": attempt, "k": k, "replica": replica}
        with self._db.beside("release an update") as connection:
            _lock(connection)
            gone = connection.execute(
                text(
                    "DELETE FROM claims WHERE round = :round AND attempt = :attempt AND k = :k AND replica = :replica"
                ),
                this,
            )
            connection.execute(text("UPDATE head SET claimed = claimed - :n"), {"n": gone.rowcount})

    def fail(self, round: int, attempt: int, k: int, why: str) -> None:
        """Record that a client will not send an update, unless it already has."""
        with self._db.beside("note a failure") as connection:
            _lock(connection)
            connection.execute(
                text("INSERT INTO claims VALUES (:round, :attempt, :k, NULL, :why) ON CONFLICT DO NOTHING"),
                {"round": round, "attempt": attempt, "k": k, "why": why},
            )
            _noticed(connection)

    # The leader's decisions

    def open(self, round: int, attempt: int, goal: int, cap: float, judges: Judges | None = None) -> float:
        """Open an attempt for claims; one that is open stays as it is. Returns the largest weight of an update."""
        this = {"round": round, "attempt": attempt, "goal": goal, "cap": cap, "trained": attempt % JUDGING}
        with self._db.leading(f"open round {round}") as connection:
            connection.execute(_NEW_HEAD, {"epoch": secrets.token_urlsafe(16)})
            _lock(connection)
            connection.execute(
                text("DELETE FROM claims WHERE round <> :round OR attempt NOT IN (:attempt, :trained)"), this
            )
            if judges:
                asked = {"model": judges.model, "clients": json.dumps(judges.clients), "replica": judges.replica}
                connection.execute(_ASK_JUDGES, this | asked)
            connection.execute(
                text(
                    "UPDATE head SET round = :round, attempt = :attempt, goal = :goal, cap = :cap,"
                    " begun = EXTRACT(EPOCH FROM clock_timestamp()) WHERE round <> :round OR attempt <> :attempt"
                ),
                this,
            )
            _recount(connection)
            return float(connection.scalar(text("SELECT cap FROM head")) or cap)

    def seal(self, round: int, attempt: int) -> dict[int, int]:
        """Stop claims; returns which client is in which replica's sum."""
        with self._db.leading(f"seal round {round}") as connection:
            connection.exec_driver_sql("UPDATE head SET sealed = TRUE")
            return _claims(connection, round, attempt)[0]

    # Looking

    def head(self, replica: int) -> Head | None:
        """None if the tables were lost."""
        with self._db.beside("look at the replicas") as connection:
            return _head(connection, replica)

    def view(self, replica: int, changed: int) -> SharedView | None:
        """Everything at one moment, with the clients changed after change `changed`; None if the tables were lost."""
        with self._db.beside("look at the run") as connection:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            head = _head(connection, replica)
            if head is None:
                return None
            row = connection.execute(
                text("SELECT *, EXTRACT(EPOCH FROM clock_timestamp()) - begun AS age FROM head")
            ).one()
            opened = progress.open_round(connection)
            asked, model_at = _asked(connection, opened, row)
            claims, failed = _claims(connection, row.round, row.attempt) if asked else ({}, {})
            fresh = rows(connection, clients, clients.c.changed > changed, order=clients.c.changed)
            over = one_row(connection, notes, notes.c.key == DONE)
            return SharedView(
                head,
                progress.last_round(connection),
                asked,
                model_at,
                row.cap,
                row.begun,
                max(0.0, float(row.age)),
                row.sealed,
                claims,
                failed,
                tuple(client_row(each) for each in fresh),
                fresh[-1].changed if fresh else changed,
                None if over is None else over.value,
                connection.scalar(select(run.c.plan_digest)),
            )


_ASK_JUDGES: Final = text(
    "INSERT INTO judging VALUES (1, :round, :attempt, :model, :clients, :replica) ON CONFLICT (id) DO UPDATE SET"
    " round = :round, attempt = :attempt, model = :model, clients = :clients, replica = :replica"
)
_JUDGES: Final = text(
    "SELECT j.model, j.clients, r.id, r.url, r.key, r.certificate FROM judging j JOIN replicas r ON r.id = j.replica"
    " WHERE j.round = :round AND j.attempt = :attempt"
)


def _asked(connection: Connection, opened: RoundRow | None, head: Any) -> tuple[RoundRow | None, ReplicaRow | None]:
    """What the open round has open for claims: the attempt itself, or the evaluation of its model."""
    if opened is None or (head.round, head.attempt % JUDGING) != (opened.round, opened.attempt):
        return None, None
    if head.attempt == opened.attempt:
        return opened, None
    row = connection.execute(_JUDGES, {"round": head.round, "attempt": head.attempt}).one_or_none()
    if row is None:
        return None, None
    judges = RoundRow(head.round, head.attempt, "judging", tuple(json.loads(row.clients)), row.model)
    return judges, _replica_row(row)


def _replica_row(row: Any) -> ReplicaRow:
    return ReplicaRow(row.id, row.url, bytes(row.key), row.certificate)


_CLAIM: Final = text(
    "INSERT INTO claims VALUES (:round, :attempt, :k, :replica, NULL)"
    " ON CONFLICT (round, attempt, k) DO UPDATE SET replica = :replica WHERE claims.replica IS NULL"
)


def _claimable(connection: Connection, this: Mapping[str, int]) -> Receipt:
    """Whether an update may be claimed. Locks the head, so that claims take turns."""
    head = connection.execute(text("SELECT round, attempt, goal, sealed, claimed FROM head FOR UPDATE")).one_or_none()
    if head is None or (head.round, head.attempt) != (this["round"], this["attempt"]):
        return Receipt.WRONG_ROUND
    by = connection.execute(
        text("SELECT replica FROM claims WHERE round = :round AND attempt = :attempt AND k = :k"), this
    ).one_or_none()
    if by is not None and by.replica is not None:
        return Receipt.DUPLICATE
    return Receipt.ROUND_CLOSED if head.sealed or head.claimed >= head.goal else Receipt.ACCEPTED


def _lock(connection: Connection) -> None:
    """Block claims. This row is locked before any other, which prevents deadlocks."""
    connection.exec_driver_sql("SELECT 1 FROM head FOR UPDATE")


def _noticed(connection: Connection) -> None:
    """Signal a change that replicas must not miss."""
    connection.exec_driver_sql("UPDATE head SET version = version + 1")


def _remove(connection: Connection, replicas: Collection[int]) -> None:
    _lock(connection)
    connection.execute(text("DELETE FROM replicas WHERE id = ANY(:ids)"), {"ids": list(replicas)})
    _recount(connection)
    _noticed(connection)


def _recount(connection: Connection) -> None:
    """Reopen the attempt for as many claims as are missing."""
    connection.exec_driver_sql(
        "UPDATE head SET sealed = FALSE, claimed = (SELECT count(*) FROM claims c WHERE c.replica IS NOT NULL"
        " AND c.round = head.round AND c.attempt = head.attempt)"
    )


def _claims(connection: Connection, round: int, attempt: int) -> tuple[dict[int, int], dict[int, str]]:
    found = connection.execute(
        text("SELECT k, replica, why FROM claims WHERE round = :round AND attempt = :attempt"),
        {"round": round, "attempt": attempt},
    ).all()
    claimed = {row.k: row.replica for row in found if row.replica is not None}
    return claimed, {row.k: row.why for row in found if row.replica is None}


def _head(connection: Connection, replica: int) -> Head | None:
    row = connection.execute(
        text("SELECT epoch, version, claimed, EXISTS (SELECT 1 FROM replicas WHERE id = :id) AS member FROM head"),
        {"id": replica},
    ).one_or_none()
    return None if row is None else Head(row.epoch, row.version, row.claimed, row.member)
