"""`Store`: the database of one run, as its server uses it."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from sqlalchemy import Connection, and_, delete

from fedavg.fleets.http.server.store import progress, schema
from fedavg.fleets.http.server.store.address import database_at
from fedavg.fleets.http.server.store.connections import Connections, next_term, write_note
from fedavg.fleets.http.server.store.enrolment import Applicant, client_row, enrolled, next_change, token_row
from fedavg.fleets.http.server.store.rows import ClientRow, Counted, RoundRow, RunRow, StoreError, TokenRow
from fedavg.fleets.http.server.store.schema import clients, ledger, meta, notes, rounds, run, states, tokens
from fedavg.fleets.http.server.store.sealed import (
    DamagedRow,
    check_all,
    insert_row,
    one_row,
    rows,
    seal_all,
    update_rows,
)
from fedavg.plan import Plan
from fedavg.privacy.served import Attempt

#: States kept besides the newest, unless more are asked for, so that a damaged one does not end a run.
OLD_STATES_KEPT: Final = 2


class Store:
    """The database of one run. Usable from several threads, but not across a fork."""

    def __init__(self, connections: Connections) -> None:
        self._db = connections
        self.old_states_kept = OLD_STATES_KEPT

    @classmethod
    def open(cls, url_or_path: str | Path, part: str | None = None) -> Self:
        """Opens or creates the database at a path, `sqlite:///path` or `postgresql://...`, with the newest schema.

        `part` is a part of a PostgreSQL database with its own tables, such as one run of several.
        """
        store = cls(Connections(database_at(url_or_path, part)))
        try:
            store._migrate()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        self._db.close()

    @property
    def name(self) -> str:
        """The database, without its password."""
        return self._db.database.name

    @property
    def connections(self) -> Connections:
        """For the data that replicas share besides the record of the run."""
        return self._db

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def acquire(self, owner: str) -> None:
        """Makes this process the only server of the run until it ends; refused while another one lives.

        `owner` is what a refused process is told, such as a host and a process number. A process forked after this
        holds the lock as well, until it ends.
        """
        self._db.acquire(owner)

    def begin_term(self, of_service: int | None = None) -> None:
        """Begin a new term: a previous leader that still lives can no longer write.

        `of_service` is the term in which the replicas of the run's service are led; `Deposed` if there was a later one.
        """
        with self._db.write("begin a term") as connection:
            term = next_term(connection, of_service)
        self._db.term = term

    # ------------------------------------------------------------------ the run

    def run(self) -> RunRow | None:
        """The run of this database; None if it has none yet."""
        with self._db.read("read the plan") as connection:
            there = one_row(connection, run)
        return None if there is None else RunRow(there.plan_toml, there.plan_digest, there.engine)

    def save_run(self, plan_toml: str, plan_digest: str, engine: str) -> RunRow:
        """Stores the run of this database; a run that is already there is returned as it was begun."""
        with self._db.write("save the plan") as connection:
            there = one_row(connection, run)
            if there is None:
                values = {"plan_toml": plan_toml, "plan_digest": plan_digest, "engine": engine}
                insert_row(connection, run, id=1, **values)
                return RunRow(**values)
        if there.plan_digest != plan_digest:
            raise StoreError(
                f"this database belongs to another plan: {self._db.database.name} holds plan {there.plan_digest}, "
                f"this one is {plan_digest}; they differ in {_differing(there.plan_toml, plan_toml)}. Use the plan it "
                "was made for or another database"
            )
        return RunRow(there.plan_toml, there.plan_digest, there.engine)

    # ------------------------------------------------------------------ notes

    def set_note(self, key: str, value: str) -> None:
        with self._db.write(f"save the note {key!r}") as connection:
            write_note(connection, key, value)

    def first_note(self, key: str, value: str) -> str:
        """Writes a note if it does not exist yet; returns the note in the database."""
        with self._db.write(f"save the note {key!r}") as connection:
            row = one_row(connection, notes, notes.c.key == key)
            if row is None:
                insert_row(connection, notes, key=key, value=value)
        return value if row is None else str(row.value)

    def note(self, key: str) -> str | None:
        with self._db.read(f"read the note {key!r}") as connection:
            row = one_row(connection, notes, notes.c.key == key)
        return None if row is None else str(row.value)

    # ------------------------------------------------------------------ tokens

    def add_token(
        self, hash: bytes, uses: int | None, label: str, client: int | None, expires: int | None = None
    ) -> None:
        """Lets holders of the token with this hash enrol `uses` times (None: no limit), only as `client` if given."""
        values = {"hash": hash, "uses": uses, "label": label, "client": client, "expires": expires}
        with self._db.write("add a join token") as connection:
            insert_row(connection, tokens, used=0, **values)

    def tokens(self) -> list[TokenRow]:
        with self._db.read("read the join tokens") as connection:
            return [token_row(row) for row in rows(connection, tokens, order=(tokens.c.label, tokens.c.hash))]

    def remove_token(self, hash: bytes) -> bool:
        """Returns whether there was such a token; clients that enrolled with it stay."""
        with self._db.write("remove a join token") as connection:
            return connection.execute(delete(tokens).where(tokens.c.hash == hash)).rowcount == 1

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
        tasks: tuple[str, ...] | None = None,
    ) -> ClientRow:
        """Gives the holder of `key` a number for one use of the token. A repeated call returns the same number.

        `most` is K of the plan: numbers run from 0 to K - 1, and clients beyond K are refused.
        """
        who = Applicant(key, examples, name, client, address, approved, tasks)
        with self._db.write("enrol a client") as connection:
            return enrolled(connection, token_hash, who, most, now)

    def clients(self) -> list[ClientRow]:
        with self._db.read("read the clients") as connection:
            return [client_row(row) for row in rows(connection, clients, order=clients.c.k)]

    def client(self, k: int) -> ClientRow | None:
        with self._db.read("read a client") as connection:
            row = one_row(connection, clients, clients.c.k == k)
        return None if row is None else client_row(row)

    def revoke(self, numbers: Iterable[int]) -> None:
        """Shuts clients out for good; their numbers are not reused."""
        self._change_clients(numbers, revoked=1)

    def approve(self, numbers: Iterable[int]) -> None:
        """Approves clients that waited for approval."""
        self._change_clients(numbers, approved=1)

    def count_examples(self, k: int, examples: int) -> None:
        """Stores a client's new number of examples."""
        self._change_clients([k], examples=examples)

    def _change_clients(self, numbers: Iterable[int], **values: int) -> None:
        """All of them or none."""
        with self._db.write("change clients") as connection:
            for k in numbers:
                changed = next_change(connection)
                if not update_rows(connection, clients, clients.c.k == k, changed=changed, **values):
                    raise StoreError(f"there is no client {k}; the clients that enrolled are numbered from 0")

    # ------------------------------------------------------------------ rounds

    def initial_state(self, blob: bytes, model_sha256: str) -> None:
        """The state before round 1; written once. Writing the same state again is allowed."""
        with self._db.leading("save the initial state") as connection:
            if progress.last_round(connection) > 0:
                raise StoreError("the run has rounds already; an initial state is only for a new one")
            there = one_row(connection, states, states.c.round == 0)
            if there is None:
                progress.insert_state(connection, 0, blob, model_sha256)
            elif there.model_sha256 != model_sha256:
                raise StoreError(
                    f"the run began from model {there.model_sha256}, not {model_sha256}; use another database"
                )

    def begin_round(self, round: int, attempt: int, cohort: Sequence[int], model_sha256: str) -> None:
        """Opens an attempt at the next round; a repeated call with the same values is allowed."""
        wanted = RoundRow(round, attempt, "collecting", tuple(cohort), model_sha256)
        with self._db.leading(f"begin round {round}") as connection:
            progress.begin(connection, wanted)

    def abandon_round(self, round: int, attempt: int, reason: str, opened: Sequence[int] | None = None) -> None:
        """Ends an attempt without a result. A repeated call is allowed, since a lost connection may hide a success.

        `opened` are the clients whose sum may have been seen; None if unknown.
        """
        with self._db.leading(f"abandon round {round}") as connection:
            this = progress.this(round, attempt)
            there = one_row(connection, rounds, this)
            if there is not None and there.state == "abandoned":
                return
            progress.expect_open(connection, round, attempt, "abandoned")
            seen = None if opened is None else json.dumps(list(opened))
            update_rows(connection, rounds, this, state="abandoned", reason=reason, counted=seen)

    def commit_round(
        self,
        round: int,
        attempt: int,
        state_blob: bytes,
        model_sha256: str,
        row: Mapping[str, object],
        counted: Sequence[int],
        spent: Mapping[str, object] | None = None,
    ) -> None:
        """Ends the open round: its state, metrics, who counted and what it spent are stored together or not at all.

        When this fails with `retryable`, a lost connection may have hidden a success: check `last_round()` before
        trying again, since a round is never committed twice.
        """
        with self._db.leading(f"commit round {round}") as connection:
            progress.expect_next(connection, round, "be committed")
            progress.expect_open(connection, round, attempt, "committed")
            # Clients that count need not be in this cohort: asynchronous clients were picked in earlier rounds.
            if len(set(counted)) != len(counted):
                raise StoreError(f"round {round} counts clients {list(counted)}; expected each of them once")
            progress.insert_state(connection, round, state_blob, model_sha256)
            connection.execute(delete(states).where(states.c.round < round - self.old_states_kept))
            done = {"state": "done", "metrics": json.dumps(dict(row)), "counted": json.dumps(list(counted))}
            update_rows(connection, rounds, progress.this(round, attempt), **done)
            if spent is not None:
                insert_row(connection, ledger, round=round, entry=json.dumps(dict(spent)))

    def open_round(self) -> RoundRow | None:
        """The round that was being collected, for a restarted server."""
        with self._db.read("read the open round") as connection:
            return progress.open_round(connection)

    def next_attempt(self, round: int) -> int:
        """The number of the next attempt at a round, from 0."""
        with self._db.read(f"read round {round}") as connection:
            return progress.next_attempt(connection, round)

    def last_round(self) -> int:
        """The newest committed round, 0 before the first."""
        with self._db.read("read the last round") as connection:
            return progress.last_round(connection)

    def committed(self) -> list[dict[str, object]]:
        """The metrics of every committed round, in order."""
        with self._db.read("read the rounds") as connection:
            done = rows(connection, rounds, rounds.c.state == "done", order=rounds.c.round)
        return [json.loads(row.metrics) for row in done]

    def counted(self, round: int) -> Counted:
        """The committed attempt of a round, and the clients whose updates are in it."""
        with self._db.read(f"read round {round}") as connection:
            row = one_row(connection, rounds, and_(rounds.c.round == round, rounds.c.state == "done"))
        if row is None:
            raise StoreError(f"round {round} is not committed; expected one of those that `committed()` gives")
        return Counted(row.attempt, frozenset(json.loads(row.counted)))

    def attempts(self) -> list[Attempt]:
        """Every attempt at a round so far, in order: which clients were asked, and whose sum may have been seen."""
        with self._db.read("read the attempts") as connection:
            found = rows(connection, rounds, order=(rounds.c.round, rounds.c.attempt))
        return [progress.attempt_of(row) for row in found]

    def last_state(self) -> tuple[int, bytes] | None:
        """The newest committed round and its state, checked against the digest it was stored with."""
        with self._db.read("read the server's state") as connection:
            found = rows(connection, states, order=states.c.round.desc(), limit=1)
        return (found[0].round, bytes(found[0].blob)) if found else None

    def ledger(self) -> list[dict[str, object]]:
        """What each committed round spent, in order."""
        with self._db.read("read the ledger") as connection:
            return [json.loads(row.entry) for row in rows(connection, ledger, order=ledger.c.round)]

    def _migrate(self) -> None:
        """Migrates the schema from its current step to the newest; a process that opens at the same time waits.

        A database that is up to date is checked from end to end, so that damage is found before anything builds on it.
        """
        with self._db.write("bring the schema up to date") as connection:
            self._db.database.check(connection)
            found, newest = schema.found_schema(connection), len(schema.MIGRATIONS)
            if found is not None and not 0 <= found <= newest:
                raise StoreError(
                    f"{self._db.database.name} has schema {found}; this version of fedavg knows schemas up to "
                    f"{newest}; update fedavg, or restore the database from a copy"
                )
            if found == newest:
                self._check_everything(connection)
                return
            schema.bring_up_to_date(connection, found, self._db.database.blob_type)
            connection.execute(delete(meta))
            insert_row(connection, meta, key="schema", value=str(newest))
            insert_row(connection, meta, key="definitions", value=self._definitions(connection))
            seal_all(connection)

    def _check_everything(self, connection: Connection) -> None:
        check_all(connection)
        noted = one_row(connection, meta, meta.c.key == "definitions")
        if noted is None or noted.value != self._definitions(connection):
            raise DamagedRow("its tables are not defined as they were made")
        last, found = progress.last_round(connection), rows(connection, states, order=states.c.round.desc(), limit=1)
        done = [row.round for row in rows(connection, rounds, rounds.c.state == "done", order=rounds.c.round)]
        if done != list(range(1, last + 1)) or (last and not (found and found[0].round == last)):
            raise DamagedRow(f"of its {last} rounds some are lost")

    def _definitions(self, connection: Connection) -> str:
        return sha256(self._db.database.definitions(connection).encode()).hexdigest()


def _differing(*plans: str) -> str:
    """The options in which plans differ, according to their texts."""
    runtime = {spec.name for spec in fields(Plan) if spec.metadata["runtime"]}
    one, other = (tomllib.loads(text) for text in plans)
    names = [name for name in one | other if name not in runtime and one.get(name) != other.get(name)]
    return ", ".join(names) or "a part that no text shows"
