"""The runs of a service, in its database: who submitted each, and its state."""

import json
from collections.abc import Collection
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection, func, select

from fedavg.errors import PlanError
from fedavg.fleets.http.server.store.connections import Connections, check_term, write_note
from fedavg.fleets.http.server.store.rows import StoreError, SubmittedRun
from fedavg.fleets.http.server.store.schema import notes, runs
from fedavg.fleets.http.server.store.sealed import insert_row, one_row, rows, update_rows

#: The note that holds the first number that a new run may have, in a database restored from a copy.
RUNS_FROM: Final = "runs-from"
#: A restored service numbers its new runs from the next multiple of this.
RUNS_APART: Final = 1000


class Runs:
    """The table of runs. Thread-safe."""

    def __init__(self, connections: Connections) -> None:
        self._db = connections

    def submit(
        self, plan_toml: str, plan_digest: str, name: str, by: str, now: float, init_sha256: str | None = None
    ) -> int:
        """Add a run at the end of the queue; returns its number. A run with `init_sha256` waits for that model."""
        with self._db.write("submit a run") as connection:
            number = self._next_number(connection)
            insert_row(
                connection, runs, number=number, name=name, plan_toml=plan_toml, plan_digest=plan_digest,
                state="incomplete" if init_sha256 else "queued", detail="", submitted=int(now), by=by, changes="[]",
                init_sha256=init_sha256,
            )  # fmt: skip
        return number

    @staticmethod
    def _next_number(connection: Connection) -> int:
        """The number after all known runs; in a restored service, after all runs that may have been submitted."""
        first = one_row(connection, notes, notes.c.key == RUNS_FROM)
        latest = int(connection.scalar(select(func.max(runs.c.number))) or 0)
        return max(latest + 1, 1 if first is None else int(first.value))

    def restored(self) -> None:
        """Mark the database as restored from a copy. Runs may have been submitted since then: skip their numbers."""
        with self._db.write("note that this is a copy") as connection:
            beyond = RUNS_APART * (self._next_number(connection) // RUNS_APART + 1)
            write_note(connection, RUNS_FROM, str(beyond))

    def give_model(self, number: int, content: bytes) -> None:
        """Store the model that a run starts from; the run now waits for its turn."""
        with self._db.write(f"save the model of run {number}") as connection:
            row = _found(connection, number)
            if row.init_sha256 is None or row.state != "incomplete":
                raise StoreError(f"run {number} waits for no model; expected one that was submitted with --init")
            if sha256(content).hexdigest() != row.init_sha256:
                raise StoreError(f"the model of run {number} is another one than was announced; send it again")
            update_rows(connection, runs, runs.c.number == number, init=content, state="queued")

    def model(self, number: int) -> bytes | None:
        """The model that a run starts from, safetensors; None if it starts from its task's own."""
        with self._db.read(f"read the model of run {number}") as connection:
            content = _found(connection, number).init
        return None if content is None else bytes(content)

    def all(self) -> list[SubmittedRun]:
        with self._db.read("read the runs") as connection:
            return [_run(row) for row in rows(connection, runs, order=runs.c.number)]

    def count(self) -> dict[str, int]:
        """How many runs there are, by state."""
        with self._db.read("count the runs") as connection:
            found = connection.execute(select(runs.c.state, func.count()).group_by(runs.c.state)).all()
        return {str(state): int(number) for state, number in found}

    def one(self, number: int) -> SubmittedRun:
        with self._db.read(f"read run {number}") as connection:
            return _run(_found(connection, number))

    def find(self, number: int) -> SubmittedRun | None:
        with self._db.read(f"read run {number}") as connection:
            row = one_row(connection, runs, runs.c.number == number)
        return None if row is None else _run(row)

    def next(self, count: int = 1) -> list[SubmittedRun]:
        """The runs under way, then the first of the queued ones; at most `count` in total."""
        with self._db.read("read the runs") as connection:
            found = [
                row
                for state in ("running", "queued")
                for row in rows(connection, runs, runs.c.state == state, order=runs.c.number, limit=count)
            ]
        return [_run(row) for row in found[:count]]

    def under_way(self) -> list[SubmittedRun]:
        """The runs that are being served."""
        return self._in_state("running")

    def done(self) -> list[SubmittedRun]:
        return self._in_state("done")

    def _in_state(self, state: str) -> list[SubmittedRun]:
        with self._db.read("read the runs") as connection:
            return [_run(row) for row in rows(connection, runs, runs.c.state == state, order=runs.c.number)]

    def set_state(
        self,
        number: int,
        state: str,
        detail: str = "",
        *,
        only_from: Collection[str] | None = None,
        plan_digest: str | None = None,
        term: int | None = None,
    ) -> bool:
        """Change a run's state if it is in one of the states `only_from` and has this plan; returns whether it was so.

        `term` is the one of the leader that decides so; `Deposed` if another replica leads by now.
        """
        doing = f"note what became of run {number}"
        with self._db.write(doing) as connection:
            if term is not None:
                check_term(connection, term, doing)
            row = _found(connection, number)
            as_expected = (only_from is None or row.state in only_from) and plan_digest in (None, row.plan_digest)
            if as_expected:
                update_rows(connection, runs, runs.c.number == number, state=state, detail=detail)
        return as_expected

    def change(
        self, found: SubmittedRun, plan_toml: str, plan_digest: str, change: dict[str, object], state: str
    ) -> None:
        """Change the plan of a run that still is as it was found, and record the change."""
        number = found.number
        with self._db.write(f"change run {number}") as connection:
            row = _found(connection, number)
            if (row.state, row.plan_digest) != (found.state, found.plan_digest):
                raise PlanError(f"run {number} was {found.state}, and was changed meanwhile: look at it, and try again")
            noted = [*json.loads(row.changes), change]
            update_rows(
                connection, runs, runs.c.number == number, plan_toml=plan_toml, plan_digest=plan_digest,
                changes=json.dumps(noted), state=state, detail="",
            )  # fmt: skip


def _found(connection: Connection, number: int) -> Any:
    row = one_row(connection, runs, runs.c.number == number)
    if row is None:
        raise StoreError(f"there is no run {number}; 'fedavg runs' lists them")
    return row


def _run(row: Any) -> SubmittedRun:
    return SubmittedRun(
        row.number, row.name, row.plan_toml, row.plan_digest, row.state, row.detail, row.submitted, row.by,
        tuple(json.loads(row.changes)), row.init_sha256,
    )  # fmt: skip
