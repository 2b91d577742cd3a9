"""Privacy of a run over the network, where nobody can promise how cohorts are drawn.

Which clients are available depends on the clients, and may depend on their data: there is no sampling to hide in. So a
release of a client's data is charged in full, and a run's epsilon is that of the client with the most releases. What
counts as a release depends on where the noise is added, and on whom it protects against:

    model     noise at the server: the model of a committed round, to all who see models
    sum       noise of clients under secure aggregation: every sum that may have been opened, to the server too
    update    noise on each client by itself: every update that was asked for, to the server too; a device sends the
              same one in every attempt at a round, so a round counts once

The database has each attempt and its cohort before anybody is invited: nothing is released without a record.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedavg.dp.accounting import spending
from fedavg.errors import FedAvgError, RunDirError
from fedavg.files import write_atomically
from fedavg.privacy.ledger import Budget

log = logging.getLogger("fedavg.fleet")


class BudgetSpent(FedAvgError):
    """Another attempt might cost more than the plan allows."""


@dataclass(frozen=True)
class Attempt:
    """An attempt at a round, as recorded. `counted`: whose data is in a sum; None if that is no longer known."""

    round: int
    attempt: int
    #: collecting, abandoned, done, or undone: it was committed, and the run was rolled back to an earlier round since
    state: str
    cohort: tuple[int, ...]
    counted: tuple[int, ...] | None

    def released(self, by: str) -> tuple[int, ...]:
        """The clients whose data was released, or may have been."""
        if by == "update":
            return self.cohort
        if self.state in ("done", "undone"):  # what was released cannot be taken back
            return self.counted or self.cohort  # anonymous updates: any client that was asked may have sent one
        if by == "model":
            return ()
        return self.cohort if self.counted is None else self.counted


class Participation:
    """How many releases each client has made."""

    def __init__(self, by: str) -> None:
        self._by = by
        self._releases: Counter[int] = Counter()
        self._last: dict[int, int] = {}
        self.most = 0

    def add(self, attempt: Attempt) -> None:
        new = self._new(attempt.round, attempt.released(self._by))
        self._releases.update(new)
        self._last.update(dict.fromkeys(new, attempt.round))
        self.most = max([self.most, *(self._releases[k] for k in new)])

    def after(self, round: int, cohort: Iterable[int]) -> int:
        """What `most` would be if data of each of these clients were released in this round."""
        return max([self.most, *(self._releases[k] + 1 for k in self._new(round, cohort))])

    def _new(self, round: int, clients: Iterable[int]) -> list[int]:
        """Who has one more release: a later attempt at a round repeats the same update, which is no new release."""
        once = self._by == "update"
        return [k for k in clients if not (once and self._last.get(k) == round)]


class ServedLedger:
    """What the attempts so far cost, kept in memory and published as lines of `ledger.jsonl`."""

    def __init__(self, budget: Budget, limit: float | None, path: Path, attempts: Sequence[Attempt]) -> None:
        self._budget, self._limit, self._path = budget, limit, path
        self._spent = Participation(budget.releases)
        #: Not yet in the file.
        self._lines: list[str] = []
        _check_none_forgotten(path, attempts)
        lines = [self._settled(attempt) for attempt in attempts if attempt.state != "collecting"]
        write_atomically(path, "".join(lines).encode(), private=True)

    @property
    def releases(self) -> int:
        """The releases of the client with the most."""
        return self._spent.most

    def releases_with(self, attempt: Attempt) -> int:
        """The same once this attempt is settled."""
        return self._spent.after(attempt.round, attempt.released(self._budget.releases))

    def entry(self, round: int) -> dict[str, Any]:
        """What all attempts so far cost together."""
        return self._budget.entry(round, self.releases)

    def check(self, round: int, cohort: Iterable[int]) -> None:
        """Before an attempt: BudgetSpent if it might cost more than the limit."""
        cost = spending(self._budget.sampling, self._budget.noise_multiplier, self._budget.delta)
        if self._limit is not None and cost.epsilon(self._spent.after(round, cohort)) > self._limit:
            raise BudgetSpent(
                f"the privacy budget is spent: another attempt at round {round} could cost more than epsilon "
                f"{self._limit:g}, after {self.releases} releases of one client's data"
            )

    def settle(self, attempt: Attempt) -> None:
        """An attempt is over. Its line only copies the database, so the run continues even if the disk is full."""
        self._lines.append(self._settled(attempt))
        try:
            with self._path.open("a") as file:
                file.writelines(self._lines)
            self._lines.clear()
        except OSError as error:
            log.error("cannot write; trying again", extra={"detail": f"{self._path}: {error.strerror}"})

    def _settled(self, attempt: Attempt) -> str:
        self._spent.add(attempt)
        released = sorted(attempt.released(self._budget.releases))
        epsilon = self._budget.entry(attempt.round, self.releases)["epsilon"]
        row = {"round": attempt.round, "attempt": attempt.attempt, "state": attempt.state, "released": released}
        return json.dumps(row | {"releases": self.releases, "epsilon": epsilon, "delta": self._budget.delta}) + "\n"


def _check_none_forgotten(path: Path, attempts: Sequence[Attempt]) -> None:
    """The database records the end of an attempt before the file does; if only the file has it, records were lost."""
    known = {(attempt.round, attempt.attempt) for attempt in attempts if attempt.state != "collecting"}
    forgotten = [row for row in _recorded(path) if row not in known]
    if forgotten:
        raise RunDirError(
            f"{path} has {len(forgotten)} attempts that the database lacks, the first at round {forgotten[0][0]}: the "
            "database is an older copy, or another one. What was released cannot be taken back: restore the newer one"
        )


def _recorded(path: Path) -> list[tuple[int, int]]:
    """The attempts in a ledger; a line that a crash cut short is ignored."""
    rows = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        with suppress(ValueError, KeyError, TypeError):
            row = json.loads(line)
            rows.append((row["round"], row["attempt"]))
    return rows
