"""Operators' changes to a run, in the run's own database: a change and its record are one transaction."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, and_, delete, func, select

from fedavg.fleets.http.server.store import progress
from fedavg.fleets.http.server.store.connections import Connections, next_term, write_note
from fedavg.fleets.http.server.store.rows import Change, StoreError
from fedavg.fleets.http.server.store.schema import changes, ledger, rounds, run, states
from fedavg.fleets.http.server.store.sealed import insert_row, rows, update_rows

EXTENDED: Final = "extended"
ROLLED_BACK: Final = "rolled back"
RESTORED: Final = "restored"
#: A restored run numbers its attempts from the next multiple of this: attempts made after the copy had lower numbers.
ATTEMPTS_APART: Final = 1000


class ChangeLog:
    """The record of one run. Thread-safe."""

    def __init__(self, connections: Connections) -> None:
        self._db = connections

    def all(self) -> list[Change]:
        """Oldest first."""
        with self._db.read("read what was changed") as connection:
            return [_change(row) for row in rows(connection, changes, order=changes.c.number)]

    def take_plan(self, plan_toml: str, plan_digest: str, extensions: Sequence[Mapping[str, object]]) -> None:
        """Continue the run with another plan; all extensions that led to it are recorded."""
        with self._db.leading("change the plan") as connection:
            noted = sum(row.what == EXTENDED for row in rows(connection, changes))
            for each in extensions[noted:]:
                at, by = int(str(each["at"])), str(each["by"])
                said = {name: value for name, value in each.items() if name not in ("at", "by", "after_round", "what")}
                _note(connection, EXTENDED, progress.last_round(connection), at, by, said)
            update_rows(connection, run, run.c.id == 1, plan_toml=plan_toml, plan_digest=plan_digest)

    def roll_back(self, to_round: int, by: str, now: float) -> None:
        """Undo the rounds after `to_round`; what they released of clients' data stays released."""
        with self._db.leading(f"roll back to round {to_round}") as connection:
            last = progress.last_round(connection)
            kept = [row.round for row in rows(connection, states, order=states.c.round)]
            if to_round not in kept or to_round >= last:
                shown = ", ".join(str(round) for round in kept if round < last) or "none"
                raise StoreError(
                    f"the run cannot go back from round {last} to round {to_round}; the states that are kept are of "
                    f"rounds: {shown}. 'fedavg serve --keep-rounds' says how many are"
                )
            parked = progress.open_round(connection)
            reason = f"rolled back to round {to_round}"
            if parked is not None:
                this = progress.this(parked.round, parked.attempt)
                update_rows(connection, rounds, this, state="abandoned", reason=reason)
            undone = and_(rounds.c.round > to_round, rounds.c.state == "done")
            update_rows(connection, rounds, undone, state="abandoned", reason=reason, undone=1)
            spent = [json.loads(row.entry) for row in rows(connection, ledger, ledger.c.round > to_round)]
            connection.execute(delete(ledger).where(ledger.c.round > to_round))
            connection.execute(delete(states).where(states.c.round > to_round))
            _note(connection, ROLLED_BACK, last, int(now), by, {"to_round": to_round, "spent": spent})
            next_term(connection)  # a replica that has begun to lead the run meanwhile starts again from here

    def restored(self, made: float, now: float, nothing_since: bool) -> None:
        """Mark the database as restored from a copy. Attempts may have been made since the copy: skip their numbers."""
        with self._db.write("note that this is a copy") as connection:
            last = progress.last_round(connection)
            if not nothing_since:
                parked = progress.open_round(connection)
                if parked is not None:
                    this = progress.this(parked.round, parked.attempt)
                    update_rows(connection, rounds, this, state="abandoned", reason="restored from a copy")
                latest = connection.scalar(select(func.max(rounds.c.attempt))) or 0
                beyond = ATTEMPTS_APART * (latest // ATTEMPTS_APART + 1)
                write_note(connection, progress.ATTEMPTS_FROM, str(beyond))
            entry = {"copy_of": int(made), "nothing_since": nothing_since}
            _note(connection, RESTORED, last, int(now), "operator", entry)


def _note(connection: Connection, what: str, round: int, at: int, by: str, entry: Mapping[str, object]) -> None:
    number = int(connection.scalar(select(func.max(changes.c.number))) or 0) + 1
    insert_row(
        connection, changes, number=number, what=what, after_round=round, at=at, by=by, entry=json.dumps(dict(entry))
    )


def _change(row: Any) -> Change:
    return Change(row.what, row.after_round, row.at, row.by, json.loads(row.entry))
