"""The runs of a service, in its database: who submitted what, and what became of it."""

import json
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, func, select

from fedavg.fleets.http.server.store.connections import Connections
from fedavg.fleets.http.server.store.rows import StoreError, SubmittedRun
from fedavg.fleets.http.server.store.schema import runs
from fedavg.fleets.http.server.store.sealed import insert_row, one_row, rows, update_rows


class Runs:
    """The table of runs. Thread-safe."""

    def __init__(self, connections: Connections) -> None:
        self._db = connections

    def submit(
        self, plan_toml: str, plan_digest: str, name: str, by: str, now: float, init_sha256: str | None = None
    ) -> int:
        """A new run, at the end of the queue; returns its number. One with `init_sha256` waits for that model."""
        with self._db.write("submit a run") as connection:
            number = int(connection.scalar(select(func.max(runs.c.number))) or 0) + 1
            insert_row(
                connection, runs, number=number, name=name, plan_toml=plan_toml, plan_digest=plan_digest,
                state="incomplete" if init_sha256 else "queued", detail="", submitted=int(now), by=by, changes="[]",
                init_sha256=init_sha256,
            )  # fmt: skip
        return number

    def give_model(self, number: int, content: bytes) -> None:
        """The model that a run was to start from is here: it waits for its turn from now on."""
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

    def one(self, number: int) -> SubmittedRun:
        with self._db.read(f"read run {number}") as connection:
            return _run(_found(connection, number))

    def next(self) -> SubmittedRun | None:
        """The run that was under way, or the first of those that wait for their turn."""
        with self._db.read("read the runs") as connection:
            for state in ("running", "queued"):
                found = rows(connection, runs, runs.c.state == state, order=runs.c.number, limit=1)
                if found:
                    return _run(found[0])
        return None

    def set_state(self, number: int, state: str, detail: str = "") -> None:
        with self._db.write(f"note what became of run {number}") as connection:
            _found(connection, number)
            update_rows(connection, runs, runs.c.number == number, state=state, detail=detail)

    def change(self, number: int, plan_toml: str, plan_digest: str, change: dict[str, object], state: str) -> None:
        """Another plan from now on, with a record of what was changed."""
        with self._db.write(f"change run {number}") as connection:
            noted = [*json.loads(_found(connection, number).changes), change]
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
