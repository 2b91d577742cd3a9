"""What a server must not forget, in one database: SQLite (WAL) by default, PostgreSQL by URL.

Every change is one transaction, and all who write take turns (`BEGIN IMMEDIATE`, or an advisory lock that lasts as long
as the transaction), so no two of them, in whatever process, can see the same token or number as free. A single client's
update never comes here.
"""

import errno
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from threading import RLock
from time import monotonic, sleep
from typing import Any, Final, Literal, Protocol, Self

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    and_,
    column,
    create_engine,
    delete,
    event,
    exists,
    func,
    insert,
    literal,
    make_url,
    or_,
    select,
    table,
    union_all,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from fedavg.errors import FedAvgError

#: How long one writer waits for another before it gives up, in seconds.
PATIENCE_S: Final = 30
#: Between two tries of what SQLite does not wait for by itself.
RETRY_S: Final = 0.01
#: Large pages keep the chain of a state's pages short, and a commit of megabytes faster than SQLite's usual 4 KiB.
SQLITE_PAGE_BYTES: Final = 32768
#: Blobs kept besides the newest, so that a damaged one is not the end of a run.
OLD_STATES_KEPT: Final = 2
#: The two advisory locks of PostgreSQL: one for the owner of the run, one for whoever is writing.
OWNER_LOCK: Final = 0x6665_6461_7667_0001
WRITER_LOCK: Final = 0x6665_6461_7667_0002

#: Clients that one run can have: messages number them below this, and servers keep tables of them.
MOST_CLIENTS: Final = 2**20

RefusedReason = Literal[
    "token-unknown", "token-used", "token-expired", "number-taken", "number-too-large", "fleet-full", "revoked"
]


class StoreError(FedAvgError):
    """The database did not do what was asked; `retryable` says whether the same call may work later."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class EnrolRefused(FedAvgError):
    """A client was not let in; `reason` is for machines, the message for people."""

    def __init__(self, reason: RefusedReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class RunRow:
    plan_toml: str
    plan_digest: str
    engine: str


@dataclass(frozen=True)
class TokenRow:
    """`uses` is what is left, None for no limit; `client` is the number that the token is bound to, if any.

    `expires` is in seconds since 1970 by the server's clock, None for never; `used` is how many clients came by it.
    """

    hash: bytes
    uses: int | None
    label: str
    client: int | None
    expires: int | None = None
    used: int = 0


@dataclass(frozen=True)
class ClientRow:
    k: int
    key: bytes
    examples: int
    name: str
    revoked: bool
    #: The hash of the token that it came by, when (seconds since 1970) and from where it enrolled.
    token: bytes = b""
    enrolled: int = 0
    address: str = ""
    #: One that waits for the operator's approval is never invited.
    approved: bool = True


@dataclass(frozen=True)
class RoundRow:
    """An attempt at a round; `model_sha256` is the model that its cohort was given."""

    round: int
    attempt: int
    state: str
    cohort: tuple[int, ...]
    model_sha256: str


@dataclass(frozen=True)
class Counted:
    """Who is in a committed round, and at which attempt."""

    attempt: int
    clients: frozenset[int]


_META = "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)"

#: Step i takes a database from schema i to schema i + 1. A step that was released is never edited, only followed.
MIGRATIONS: Final[list[tuple[str, ...]]] = [
    (
        "CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 1), plan_toml TEXT NOT NULL, plan_digest TEXT NOT NULL,"
        " engine TEXT NOT NULL)",
        "CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE tokens (hash {blob} PRIMARY KEY, uses BIGINT CHECK (uses >= 0), label TEXT NOT NULL,"
        " client BIGINT CHECK (client >= 0))",
        "CREATE TABLE clients (k BIGINT PRIMARY KEY CHECK (k >= 0), key {blob} NOT NULL UNIQUE, token {blob} NOT NULL,"
        " examples BIGINT NOT NULL CHECK (examples >= 0), name TEXT NOT NULL, revoked INTEGER NOT NULL DEFAULT 0)",
        "CREATE TABLE rounds (round BIGINT NOT NULL CHECK (round >= 1), attempt BIGINT NOT NULL CHECK (attempt >= 0),"
        " state TEXT NOT NULL CHECK (state IN ('collecting', 'abandoned', 'done')), cohort TEXT NOT NULL,"
        " model_sha256 TEXT NOT NULL, reason TEXT, metrics TEXT, counted TEXT, PRIMARY KEY (round, attempt))",
        "CREATE UNIQUE INDEX one_round_is_open ON rounds (state) WHERE state = 'collecting'",
        "CREATE UNIQUE INDEX a_round_is_done_once ON rounds (round) WHERE state = 'done'",
        "CREATE TABLE states (round BIGINT PRIMARY KEY, model_sha256 TEXT NOT NULL, blob_sha256 TEXT NOT NULL,"
        " blob {blob} NOT NULL)",
        "CREATE TABLE ledger (round BIGINT PRIMARY KEY, entry TEXT NOT NULL)",
    ),
    (
        "ALTER TABLE tokens ADD COLUMN expires BIGINT",
        "ALTER TABLE tokens ADD COLUMN used BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE clients ADD COLUMN enrolled BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE clients ADD COLUMN address TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE clients ADD COLUMN approved INTEGER NOT NULL DEFAULT 1",
    ),
]

_meta = table("meta", column("key"), column("value"))
_run = table("run", column("id"), column("plan_toml"), column("plan_digest"), column("engine"))
_notes = table("notes", column("key"), column("value"))
_tokens = table("tokens", *map(column, ("hash", "uses", "label", "client", "expires", "used")))
_clients = table(
    "clients",
    *map(column, ("k", "key", "token", "examples", "name", "revoked", "enrolled", "address", "approved")),
)
_rounds = table(
    "rounds",
    *map(column, ("round", "attempt", "state", "cohort", "model_sha256", "reason", "metrics", "counted")),
)
_states = table("states", column("round"), column("model_sha256"), column("blob_sha256"), column("blob"))
_ledger = table("ledger", column("round"), column("entry"))


class Database(Protocol):
    """What differs between the two kinds of database."""

    name: str
    blob_type: str
    #: The first statement of a transaction that writes: waits until no other writer is at work.
    begin_writing: str

    def engine(self) -> Engine: ...

    def check(self, connection: Connection) -> None:
        """Refuses a database that is damaged."""

    def own(self, owner: str, writer: Connection) -> None:
        """Makes this process the owner of the run for as long as it, or this connection, lives."""

    def disown(self) -> None: ...

    def explain(self, error: DBAPIError) -> tuple[str, bool]:
        """What to do about a failure, and whether to try again may help."""


class Store:
    """The database of one run. Usable from several threads, but not across a fork."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine = database.engine()
        self._lock = RLock()
        self._writer: Connection | None = None
        self._owner: str | None = None

    @classmethod
    def open(cls, url_or_path: str | Path) -> Self:
        """Opens or makes the database at a path, `sqlite:///path` or `postgresql://...`, with the newest schema."""
        store = cls(_database(url_or_path))
        try:
            store._migrate()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        with self._lock:
            self._drop_writer()
            self._database.disown()
            self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def acquire(self, owner: str) -> None:
        """Makes this process the only server of the run until it ends; refused while another one lives.

        `owner` is what the other one will be told, such as a host and a process number. A process that is forked
        hereafter holds the lock as well, until it ends.
        """
        with self._lock, self._failures("take the run"):
            self._database.own(owner, self._live_writer())
            self._owner = owner

    # ------------------------------------------------------------------ the run

    def save_run(self, plan_toml: str, plan_digest: str, engine: str) -> RunRow:
        """Writes down whose database this is; a run that is already there is given back as it was begun."""
        with self._write("save the plan") as connection:
            there = connection.execute(select(_run)).one_or_none()
            if there is None:
                values = {"plan_toml": plan_toml, "plan_digest": plan_digest, "engine": engine}
                connection.execute(insert(_run).values(id=1, **values))
                return RunRow(**values)
        if there.plan_digest != plan_digest:
            raise StoreError(
                f"this database belongs to another plan: {self._database.name} holds plan {there.plan_digest}, "
                f"this one is {plan_digest}; use the plan it was made for or another database"
            )
        return RunRow(there.plan_toml, there.plan_digest, there.engine)

    def run(self) -> RunRow | None:
        with self._read("read the plan") as connection:
            row = connection.execute(select(_run.c.plan_toml, _run.c.plan_digest, _run.c.engine)).one_or_none()
        return None if row is None else RunRow(*row)

    # ------------------------------------------------------------------ notes

    def set_note(self, key: str, value: str) -> None:
        with self._write(f"save the note {key!r}") as connection:
            if connection.execute(update(_notes).where(_notes.c.key == key).values(value=value)).rowcount == 0:
                connection.execute(insert(_notes).values(key=key, value=value))

    def note(self, key: str) -> str | None:
        with self._read(f"read the note {key!r}") as connection:
            value: str | None = connection.scalar(select(_notes.c.value).where(_notes.c.key == key))
        return value

    # ------------------------------------------------------------------ tokens

    def add_token(
        self, hash: bytes, uses: int | None, label: str, client: int | None, expires: int | None = None
    ) -> None:
        """Lets who knows the token of this hash enrol `uses` times (None: without limit), as `client` only if given."""
        values = {"hash": hash, "uses": uses, "label": label, "client": client, "expires": expires}
        with self._write("add a join token") as connection:
            connection.execute(insert(_tokens).values(used=0, **values))

    def tokens(self) -> list[TokenRow]:
        with self._read("read the join tokens") as connection:
            rows = connection.execute(select(_tokens).order_by(_tokens.c.label, _tokens.c.hash)).all()
        return [_token_row(row) for row in rows]

    def remove_token(self, hash: bytes) -> bool:
        """Whether there was such a token; clients that came by it stay."""
        with self._write("remove a join token") as connection:
            return connection.execute(delete(_tokens).where(_tokens.c.hash == hash)).rowcount == 1

    # ------------------------------------------------------------------ clients

    def enrol(
        self,
        token_hash: bytes,
        key: bytes,
        examples: int,
        name: str,
        client: int | None,
        most: int | None = None,
        *,
        now: float = 0.0,
        address: str = "",
        approved: bool = True,
    ) -> ClientRow:
        """Gives the holder of `key` a number for one use of the token. Asked again, it answers the same.

        `most` is K of the plan: numbers run from 0 to K - 1, and whoever comes after K clients is refused.
        """
        with self._write("enrol a client") as connection:
            there = connection.execute(select(_clients).where(_clients.c.key == key)).one_or_none()
            if there is None or bytes(there.token) != token_hash:
                token = _usable_token(connection, token_hash, now)
                client = _agreed_number(token.client, client)
            if there is not None:
                return _welcome_back(connection, _client_row(there), examples, client)
            k = _free_number(connection) if client is None else client
            if k >= MOST_CLIENTS:
                raise EnrolRefused("fleet-full", f"this run has its {MOST_CLIENTS} clients; no number is free")
            if most is not None and k >= most:
                raise EnrolRefused(
                    "number-too-large", f"the plan has {most} clients, numbered from 0; got number {k}: ask for less"
                )
            if connection.scalar(select(_clients.c.k).where(_clients.c.k == k)) is not None:
                raise EnrolRefused("number-taken", f"client number {k} is taken; ask for another, or for none")
            row = ClientRow(k, key, examples, name, False, token_hash, int(now), address, approved)
            connection.execute(insert(_clients).values(**asdict(row) | {"revoked": 0, "approved": int(approved)}))
            counted = {"uses": _tokens.c.uses - 1, "used": _tokens.c.used + 1}
            connection.execute(update(_tokens).where(_tokens.c.hash == token_hash).values(**counted))
        return row

    def clients(self) -> list[ClientRow]:
        with self._read("read the clients") as connection:
            return [_client_row(row) for row in connection.execute(select(_clients).order_by(_clients.c.k))]

    def client(self, k: int) -> ClientRow | None:
        return self._one_client(_clients.c.k == k)

    def revoke(self, clients: Iterable[int]) -> None:
        """Shuts clients out for good; their numbers are not given away again."""
        self._change_clients(clients, revoked=1)

    def approve(self, clients: Iterable[int]) -> None:
        """Lets clients in that waited for it."""
        self._change_clients(clients, approved=1)

    def _one_client(self, condition: Any) -> ClientRow | None:
        with self._read("read a client") as connection:
            row = connection.execute(select(_clients).where(condition)).one_or_none()
        return None if row is None else _client_row(row)

    def _change_clients(self, clients: Iterable[int], **values: int) -> None:
        """All of them or none."""
        with self._write("change clients") as connection:
            for k in clients:
                if connection.execute(update(_clients).where(_clients.c.k == k).values(**values)).rowcount == 0:
                    raise StoreError(f"there is no client {k}; the clients that enrolled are numbered from 0")

    # ------------------------------------------------------------------ rounds

    def initial_state(self, blob: bytes, model_sha256: str) -> None:
        """The state before round 1; written once, and the same again is taken quietly."""
        with self._write("save the initial state") as connection:
            if _last_round(connection) > 0:
                raise StoreError("the run has rounds already; an initial state is only for a new one")
            there = connection.scalar(select(_states.c.model_sha256).where(_states.c.round == 0))
            if there is None:
                _insert_state(connection, 0, blob, model_sha256)
            elif there != model_sha256:
                raise StoreError(f"the run began from model {there}, not {model_sha256}; use another database")

    def begin_round(self, round: int, attempt: int, cohort: Sequence[int], model_sha256: str) -> None:
        """Opens an attempt at the next round; asked again with the same values, it is taken quietly."""
        wanted = RoundRow(round, attempt, "collecting", tuple(cohort), model_sha256)
        with self._write(f"begin round {round}") as connection:
            there = _open_round(connection)
            if there == wanted:
                return
            if there is not None:
                raise StoreError(
                    f"round {round}, attempt {attempt} can not begin: round {there.round}, attempt {there.attempt} is "
                    "open" + (" with other values" if (there.round, there.attempt) == (round, attempt) else "")
                    + "; commit or abandon that first"
                )  # fmt: skip
            _expect_next(connection, round, "begin")
            latest = connection.scalar(select(func.max(_rounds.c.attempt)).where(_rounds.c.round == round))
            if latest is not None and attempt <= latest:
                raise StoreError(f"attempt {attempt} at round {round} is over; the next one is {latest + 1}")
            connection.execute(
                insert(_rounds).values(
                    round=round,
                    attempt=attempt,
                    state="collecting",
                    cohort=json.dumps(list(cohort)),
                    model_sha256=model_sha256,
                )
            )

    def abandon_round(self, round: int, attempt: int, reason: str) -> None:
        """Ends an attempt without a result; asked again it is quiet, for a lost connection may hide that it worked."""
        with self._write(f"abandon round {round}") as connection:
            this = and_(_rounds.c.round == round, _rounds.c.attempt == attempt)
            if connection.scalar(select(_rounds.c.state).where(this)) == "abandoned":
                return
            _expect_open(connection, round, attempt, "abandoned")
            connection.execute(_this(round, attempt).values(state="abandoned", reason=reason))

    def commit_round(
        self,
        round: int,
        attempt: int,
        state_blob: bytes,
        model_sha256: str,
        row: Mapping[str, object],
        counted: Sequence[int],
        ledger: Mapping[str, object] | None = None,
    ) -> None:
        """Ends the open round: its state, metrics, who counted and what it spent are there together or not at all.

        When this fails with `retryable`, a lost connection may have hidden that it worked: ask `last_round()` before
        trying again, for a round is never committed twice.
        """
        with self._write(f"commit round {round}") as connection:
            _expect_next(connection, round, "be committed")
            _expect_open(connection, round, attempt, "committed")
            # Who counts need not be of the cohort that was picked: asynchronous clients were picked in earlier rounds.
            if len(set(counted)) != len(counted):
                raise StoreError(f"round {round} counts clients {list(counted)}; expected each of them once")
            _insert_state(connection, round, state_blob, model_sha256)
            connection.execute(delete(_states).where(_states.c.round < round - OLD_STATES_KEPT))
            done = {"state": "done", "metrics": json.dumps(dict(row)), "counted": json.dumps(list(counted))}
            connection.execute(_this(round, attempt).values(**done))
            if ledger is not None:
                connection.execute(insert(_ledger).values(round=round, entry=json.dumps(dict(ledger))))

    def open_round(self) -> RoundRow | None:
        """The round that was being collected, for a server that comes back."""
        with self._read("read the open round") as connection:
            return _open_round(connection)

    def next_attempt(self, round: int) -> int:
        """The number of the next attempt at a round, from 0."""
        with self._read(f"read round {round}") as connection:
            latest = connection.scalar(select(func.max(_rounds.c.attempt)).where(_rounds.c.round == round))
        return 0 if latest is None else int(latest) + 1

    def last_round(self) -> int:
        """The newest committed round, 0 before the first."""
        with self._read("read the last round") as connection:
            return _last_round(connection)

    def committed(self) -> list[dict[str, object]]:
        """The metrics of every committed round, in order."""
        done = select(_rounds.c.metrics).where(_rounds.c.state == "done").order_by(_rounds.c.round)
        with self._read("read the rounds") as connection:
            return [json.loads(metrics) for metrics in connection.scalars(done)]

    def counted(self, round: int) -> Counted:
        """The attempt that was committed of a round, and the clients whose updates are in it."""
        with self._read(f"read round {round}") as connection:
            done = and_(_rounds.c.round == round, _rounds.c.state == "done")
            row = connection.execute(select(_rounds.c.attempt, _rounds.c.counted).where(done)).one_or_none()
        if row is None:
            raise StoreError(f"round {round} is not committed; expected one of those that `committed()` gives")
        return Counted(row.attempt, frozenset(json.loads(row.counted)))

    def last_state(self) -> tuple[int, bytes] | None:
        """The newest committed round and its state, checked against the digest it was stored with."""
        with self._read("read the server's state") as connection:
            row = connection.execute(select(_states).order_by(_states.c.round.desc()).limit(1)).one_or_none()
        if row is None:
            return None
        blob = bytes(row.blob)
        if sha256(blob).hexdigest() != row.blob_sha256:
            raise StoreError(
                f"the state after round {row.round} in {self._database.name} is damaged: its content does not match "
                "its SHA-256; restore the database from a copy"
            )
        return row.round, blob

    def ledger(self) -> list[dict[str, object]]:
        """What each committed round spent, in order."""
        with self._read("read the ledger") as connection:
            entries = connection.scalars(select(_ledger.c.entry).order_by(_ledger.c.round))
            return [json.loads(entry) for entry in entries]

    # ------------------------------------------------------------------ connections and failures

    @contextmanager
    def _read(self, doing: str) -> Iterator[Connection]:
        with self._failures(doing), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _write(self, doing: str) -> Iterator[Connection]:
        """A transaction on the one connection that writes: committed at the end, undone by any exception."""
        with self._lock, self._failures(doing):
            connection = self._live_writer()
            with connection.begin():
                connection.exec_driver_sql(self._database.begin_writing)
                yield connection

    def _live_writer(self) -> Connection:
        """The one connection that writes, made anew if it was lost, and with it the ownership that it carried."""
        if self._writer is not None and not _answers(self._writer):
            self._drop_writer()
        if self._writer is None:
            writer = self._engine.connect()
            try:
                if self._owner is not None:
                    self._database.own(self._owner, writer)
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.invalidate()  # never back into the pool: a session's lock would go with it
            self._writer.close()
            self._writer = None

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        """No failure of the database leaves this module but as a `StoreError`."""
        where = f"can not {doing} in {self._database.name}"
        try:
            yield
        except DBAPIError as error:
            remedy, retryable = self._database.explain(error)
            cause = (str(error.orig).splitlines() or [type(error.orig).__name__])[0]
            raise StoreError(f"{where}: {cause}; {remedy}", retryable=retryable) from error
        except PoolTimeout as error:
            raise StoreError(f"{where}: every connection is busy; try again", retryable=True) from error
        except (SQLAlchemyError, OverflowError, UnicodeError) as error:
            raise StoreError(f"{where}: {error}; a value does not fit its column") from error

    def _migrate(self) -> None:
        """Takes the schema from whatever step it is at to the newest; who opens at the same time waits."""
        with self._write("bring the schema up to date") as connection:
            self._database.check(connection)
            connection.exec_driver_sql(_META)
            found = int(connection.scalar(select(_meta.c.value).where(_meta.c.key == "schema")) or 0)
            if found > len(MIGRATIONS):
                raise StoreError(
                    f"{self._database.name} has schema {found}; this version of fedavg knows schemas up to "
                    f"{len(MIGRATIONS)}; update fedavg or use another database"
                )
            if found == len(MIGRATIONS):
                return
            for statement in (statement for step in MIGRATIONS[found:] for statement in step):
                connection.exec_driver_sql(statement.format(blob=self._database.blob_type))
            connection.execute(delete(_meta).where(_meta.c.key == "schema"))
            connection.execute(insert(_meta).values(key="schema", value=str(len(MIGRATIONS))))


# ---------------------------------------------------------------------- steps of an enrolment


def _usable_token(connection: Connection, token_hash: bytes, now: float) -> TokenRow:
    row = connection.execute(select(_tokens).where(_tokens.c.hash == token_hash)).one_or_none()
    if row is None:
        raise EnrolRefused("token-unknown", "this join token is not known; ask the server's operator for a new one")
    if row.uses == 0:
        raise EnrolRefused("token-used", "this join token is used up; ask the server's operator for a new one")
    if row.expires is not None and now >= row.expires:
        raise EnrolRefused("token-expired", "this join token has expired; ask the server's operator for a new one")
    return _token_row(row)


def _token_row(row: Any) -> TokenRow:
    return TokenRow(bytes(row.hash), row.uses, row.label, row.client, row.expires, row.used)


def _agreed_number(bound: int | None, wanted: int | None) -> int | None:
    if None not in (bound, wanted) and bound != wanted:
        raise EnrolRefused("number-taken", f"this join token is for client {bound}, not {wanted}; ask for none")
    return wanted if bound is None else bound


def _welcome_back(connection: Connection, there: ClientRow, examples: int, wanted: int | None) -> ClientRow:
    """The answer to a client that did not get the first one, or has other examples now."""
    if there.revoked:
        raise EnrolRefused("revoked", f"client {there.k} was shut out by the server's operator")
    if wanted not in (None, there.k):
        raise EnrolRefused("number-taken", f"this key is client {there.k} already, it can not be {wanted} as well")
    connection.execute(update(_clients).where(_clients.c.k == there.k).values(examples=examples))
    return replace(there, examples=examples)


def _free_number(connection: Connection) -> int:
    """The smallest number that no client has and no unused token is bound to."""
    held, largest = connection.execute(select(func.count(), func.max(_clients.c.k)).select_from(_clients)).one()
    start = held if held == (largest or 0) + 1 else 0  # without gaps, which is the rule, there is nothing to search
    reserved = _tokens.alias()
    after = union_all(
        select(literal(start).label("k")),
        select(_clients.c.k + 1).where(_clients.c.k >= start),
        select(_tokens.c.client + 1).where(_tokens.c.client >= start),
    ).subquery()
    taken = exists().where(_clients.c.k == after.c.k)
    bound = exists().where(and_(reserved.c.client == after.c.k, or_(reserved.c.uses.is_(None), reserved.c.uses > 0)))
    return int(connection.scalar(select(func.min(after.c.k)).where(~taken, ~bound)) or 0)


def _client_row(row: Any) -> ClientRow:
    return ClientRow(
        row.k, bytes(row.key), row.examples, row.name, bool(row.revoked),
        bytes(row.token), row.enrolled, row.address, bool(row.approved),
    )  # fmt: skip


# ---------------------------------------------------------------------- steps of a round


def _this(round: int, attempt: int) -> Any:
    return update(_rounds).where(and_(_rounds.c.round == round, _rounds.c.attempt == attempt))


def _last_round(connection: Connection) -> int:
    return connection.scalar(select(func.max(_rounds.c.round)).where(_rounds.c.state == "done")) or 0


def _open_round(connection: Connection) -> RoundRow | None:
    row = connection.execute(select(_rounds).where(_rounds.c.state == "collecting")).one_or_none()
    if row is None:
        return None
    return RoundRow(row.round, row.attempt, row.state, tuple(json.loads(row.cohort)), row.model_sha256)


def _expect_next(connection: Connection, round: int, doing: str) -> None:
    last = _last_round(connection)
    if round != last + 1:
        raise StoreError(f"round {round} can not {doing}: {last} rounds are committed, the next one is {last + 1}")


def _expect_open(connection: Connection, round: int, attempt: int, doing: str) -> RoundRow:
    there = _open_round(connection)
    if there is None or (there.round, there.attempt) != (round, attempt):
        found = "none is" if there is None else f"round {there.round}, attempt {there.attempt} is"
        raise StoreError(f"round {round}, attempt {attempt} can not be {doing}: it is not open ({found})")
    return there


def _insert_state(connection: Connection, round: int, blob: bytes, model_sha256: str) -> None:
    digest = sha256(blob).hexdigest()
    connection.execute(insert(_states).values(round=round, model_sha256=model_sha256, blob_sha256=digest, blob=blob))


# ---------------------------------------------------------------------- the two kinds of database


def _database(url_or_path: str | Path) -> Database:
    if isinstance(url_or_path, Path) or "://" not in url_or_path:
        return SQLite(Path(url_or_path))
    try:
        url = make_url(url_or_path)
    except ArgumentError as error:
        raise StoreError("the database's URL can not be read; expected a path, sqlite:/// or postgresql://") from error
    if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
        return SQLite(Path(str(url.database)))
    if url.get_backend_name() == "postgresql":
        return PostgreSQL(url)
    raise StoreError(
        f"{url.render_as_string(hide_password=True)} is no database for a run; expected a path, sqlite:///path or "
        "postgresql://user@host/name"
    )


def _answers(connection: Connection) -> bool:
    """Whether the connection, which has no transaction open, still has a server at its other end."""
    if connection.invalidated or connection.closed:
        return False
    try:
        connection.exec_driver_sql("SELECT 1")
        connection.rollback()
    except DBAPIError:
        return False
    return True


def _use_wal(connection: sqlite3.Connection) -> None:
    """Who finds another connection at this in a new file is refused at once, whatever its timeout: it tries again."""
    end = monotonic() + PATIENCE_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or monotonic() > end:
                raise
        sleep(RETRY_S)


class SQLite:
    """One file, in WAL mode, so that readers never wait for the writer. The owner's lock is on a file beside it."""

    blob_type = "BLOB"
    begin_writing = "BEGIN IMMEDIATE"

    _PASSING: Final = {
        sqlite3.SQLITE_FULL: "free space on its disk",
        sqlite3.SQLITE_IOERR: "look at its disk",
        sqlite3.SQLITE_BUSY: "another process is writing: try again",
        sqlite3.SQLITE_LOCKED: "another process is writing: try again",
        sqlite3.SQLITE_NOMEM: "free memory",
    }
    _LASTING: Final = {
        sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a copy",
        sqlite3.SQLITE_NOTADB: "the file is no SQLite database: restore it from a copy or choose another file",
        sqlite3.SQLITE_READONLY: "make the file and its directory writable",
        sqlite3.SQLITE_CANTOPEN: "make its directory and give this user access to it",
    }

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._lock_file: int | None = None

    def engine(self) -> Engine:
        self._make_private()
        engine = create_engine(
            URL.create("sqlite", database=str(self._path)),
            connect_args={"check_same_thread": False, "timeout": PATIENCE_S},
            hide_parameters=True,
        )
        event.listen(engine, "connect", self._prepare)
        return engine

    def _make_private(self) -> None:
        """The file is made by us and not by SQLite, so that only its user can read it.

        One that is there is let be: to open and close it would undo this process's locks on it, which are SQLite's.
        """
        if not self._path.is_file():
            os.close(self._opened(self._path))

    @staticmethod
    def _opened(path: Path) -> int:
        try:
            return os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise StoreError(
                f"can not open {path}: {error.strerror}; make its directory and give this user access to it",
                retryable=error.errno in (errno.ENOSPC, errno.EDQUOT),
            ) from error

    @staticmethod
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # we say ourselves where a transaction begins
        connection.execute(f"PRAGMA page_size = {SQLITE_PAGE_BYTES}")
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    def check(self, connection: Connection) -> None:
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if found != "ok":
            raise StoreError(f"{self.name} is damaged ({found}); restore it from a copy")

    def own(self, owner: str, writer: Connection) -> None:
        if self._lock_file is not None:
            return
        file = self._opened(self._path.with_name(f"{self._path.name}.lock"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(file, 200, 0).decode(errors="replace")
            os.close(file)
            raise _owned(self.name, holder) from None
        with suppress(OSError):  # who holds the lock is said as a courtesy: a full disk must not stop a server
            os.ftruncate(file, 0)
            os.pwrite(file, owner.encode(errors="replace"), 0)
        self._lock_file = file

    def disown(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def explain(self, error: DBAPIError) -> tuple[str, bool]:
        code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in self._PASSING:
            return self._PASSING[code], True
        return self._LASTING.get(code, "the values or the schema are not what this version expects"), False


class PostgreSQL:
    """A server of its own. The owner's lock belongs to the session that writes: who loses one has lost the other."""

    blob_type = "BYTEA"
    begin_writing = f"SELECT pg_advisory_xact_lock({WRITER_LOCK})"

    #: Classes of SQLSTATE: connection, transaction rollback, resources (a full disk), operator, system; lock timeout.
    _PASSING: Final = {
        "08": "look whether the server is there",
        "40": "try again",
        "53": "free space or raise the limit on its server",
        "57": "the server is stopping: wait until it is back",
        "58": "look at its server's disk",
        "55": "another process is writing: try again",
    }

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")
        self.name = url.render_as_string(hide_password=True)
        #: How this process knows a session that it has lost again.
        self._mark = f"fedavg-{token_hex(8)}"

    def engine(self) -> Engine:
        defaults: dict[str, object] = {
            "connect_timeout": 10,
            "keepalives_idle": PATIENCE_S,
            "tcp_user_timeout": 1000 * PATIENCE_S,
            "options": f"-c lock_timeout={PATIENCE_S}s",
        }
        arguments = {name: value for name, value in defaults.items() if name not in self._url.query}
        try:
            return create_engine(self._url, pool_pre_ping=True, hide_parameters=True, connect_args=arguments)
        except ModuleNotFoundError as error:
            raise StoreError("PostgreSQL needs the psycopg package: pip install 'fedavg[postgres]'") from error

    def check(self, connection: Connection) -> None:
        """PostgreSQL watches over its own pages."""

    def own(self, owner: str, writer: Connection) -> None:
        """Refused while another session has the lock; one that this process lost is ended, to try again."""
        mine = f"{self._mark} {owner}"[:63]
        with writer.begin():
            writer.execute(select(func.set_config("application_name", mine, False)))
            if writer.scalar(select(func.pg_try_advisory_lock(OWNER_LOCK))):
                return
            pid, holder = self._holder(writer)
            if holder != mine:
                raise _owned(self.name, holder.partition(" ")[2])
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
        """The lock went with the session."""

    def explain(self, error: DBAPIError) -> tuple[str, bool]:
        state = getattr(error.orig, "sqlstate", None)
        if state is None and (error.connection_invalidated or type(error.orig).__name__ == "OperationalError"):
            return "look whether the server is there and its URL is right", True
        if state is not None and state[:2] in self._PASSING:
            return self._PASSING[state[:2]], True
        return "the values or the schema are not what this version expects", False


def _owned(name: str, holder: str) -> StoreError:
    who = holder or "another process"
    return StoreError(f"{name} is in use by {who}; only one server may own a run: stop that one first")
