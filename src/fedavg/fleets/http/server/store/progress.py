"""The steps of a round, inside a transaction: what is open, what comes next, the stored states."""

import json
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, func, select

from fedavg.fleets.http.server.store.rows import RoundRow, StoreError
from fedavg.fleets.http.server.store.schema import notes, rounds, states
from fedavg.fleets.http.server.store.sealed import insert_row, one_row
from fedavg.privacy.served import Attempt

#: The note that holds the first number that an attempt may have, in a database restored from a copy.
ATTEMPTS_FROM: Final = "attempts-from"


def this(round: int, attempt: int) -> ColumnElement[bool]:
    return and_(rounds.c.round == round, rounds.c.attempt == attempt)


def last_round(connection: Connection) -> int:
    return int(connection.scalar(select(func.max(rounds.c.round)).where(rounds.c.state == "done")) or 0)


def last_attempt(connection: Connection, round: int) -> int | None:
    latest: int | None = connection.scalar(select(func.max(rounds.c.attempt)).where(rounds.c.round == round))
    return latest


def next_attempt(connection: Connection, round: int) -> int:
    latest, first = last_attempt(connection, round), one_row(connection, notes, notes.c.key == ATTEMPTS_FROM)
    return max(0 if latest is None else latest + 1, 0 if first is None else int(first.value))


def open_round(connection: Connection) -> RoundRow | None:
    row = one_row(connection, rounds, rounds.c.state == "collecting")
    if row is None:
        return None
    return RoundRow(row.round, row.attempt, row.state, tuple(json.loads(row.cohort)), row.model_sha256)


def attempt_of(row: Any) -> Attempt:
    counted = None if row.counted is None else tuple(json.loads(row.counted))
    state = "undone" if row.undone else row.state
    return Attempt(row.round, row.attempt, state, tuple(json.loads(row.cohort)), counted)


def begin(connection: Connection, wanted: RoundRow) -> None:
    there = open_round(connection)
    if there == wanted:
        return
    round, attempt = wanted.round, wanted.attempt
    if there is not None:
        same = (there.round, there.attempt) == (round, attempt)
        raise StoreError(
            f"round {round}, attempt {attempt} cannot begin: round {there.round}, attempt {there.attempt} is open"
            f"{' with other values' if same else ''}; commit or abandon that first"
        )
    expect_next(connection, round, "begin")
    latest = last_attempt(connection, round)
    if latest is not None and attempt <= latest:
        raise StoreError(f"attempt {attempt} at round {round} is over; the next one is {latest + 1}")
    values: dict[str, Any] = {"cohort": json.dumps(list(wanted.cohort)), "model_sha256": wanted.model_sha256}
    insert_row(connection, rounds, round=round, attempt=attempt, state=wanted.state, **values)


def expect_next(connection: Connection, round: int, doing: str) -> None:
    last = last_round(connection)
    if round != last + 1:
        raise StoreError(f"round {round} cannot {doing}: {last} rounds are committed, the next one is {last + 1}")


def expect_open(connection: Connection, round: int, attempt: int, doing: str) -> RoundRow:
    there = open_round(connection)
    if there is None or (there.round, there.attempt) != (round, attempt):
        found = "none is" if there is None else f"round {there.round}, attempt {there.attempt} is"
        raise StoreError(f"round {round}, attempt {attempt} cannot be {doing}: it is not open ({found})")
    return there


def insert_state(connection: Connection, round: int, blob: bytes, model_sha256: str) -> None:
    digest = sha256(blob).hexdigest()
    insert_row(connection, states, round=round, model_sha256=model_sha256, blob_sha256=digest, blob=blob)
