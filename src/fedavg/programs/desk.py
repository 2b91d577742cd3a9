"""Operators' requests about the runs of a service, whichever process serves them: the queue is in the database.

A `FrontDesk` knows nothing about clients and rounds; `NowServed` says what is being served at the moment.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from hashlib import sha256
from time import time
from typing import Any, Final, final

from fedavg.engine.model import Model
from fedavg.errors import PlanError
from fedavg.fleets.http.protocol.messages import Extension, NewRun, Rollback
from fedavg.fleets.http.server.office import NoSuchRun, Office, RunLedger
from fedavg.fleets.http.server.store import ChangeLog, Runs, SubmittedRun
from fedavg.programs.extension import extended
from fedavg.programs.hosting import Hosting, weights_of

log = logging.getLogger("fedavg.fleet")

#: Allowance for the bytes of a safetensors file besides its numbers.
HEADER_BYTES: Final = 2**20
#: The states in which a run is not being served, and can be cancelled or resumed.
AT_REST: Final = ("incomplete", "queued", "paused", "failed")


class NowServed(ABC):
    """What is being served, as far as operators are concerned. Called from the handlers' threads."""

    @abstractmethod
    def committed(self) -> Mapping[int, int]:
        """The last committed round of each run that is served here."""

    @abstractmethod
    def told_to_end(self, number: int, state: str) -> bool:
        """Returns whether the run is under way; if so, it stops, keeps its open round, and has that state.

        With `running` it is started again at once, with the plan that it has by then.
        """

    @abstractmethod
    def offer_no_more(self, number: int) -> None:
        """Withdraw what was offered for a run, and its model."""

    @abstractmethod
    def look_again(self) -> None:
        """The queue has changed."""


@final
class FrontDesk(Office):
    """The runs in the database, and those of them that are served now."""

    def __init__(self, runs: Runs, hosting: Hosting, now: NowServed) -> None:
        self._runs, self._hosting, self._now = runs, hosting, now

    def submit(self, order: NewRun, by: str) -> int:
        plan = self._hosting.plan(order.plan)
        self._hosting.resolved(plan)
        number = self._runs.submit(plan.to_toml(), plan.digest, order.name, by, time(), order.init)
        log.info("run submitted", extra={"run": number, "run_name": order.name, "plan": plan.digest, "by": by})
        self._now.look_again()
        return number

    def model_bytes(self, number: int) -> int:
        _, _, setup = self._hosting.resolved(self._hosting.plan(self._one(number).plan_toml))
        return 4 * Model(setup.task, setup.plan.seed).vector.numel() * 2 + HEADER_BYTES

    def give_model(self, number: int, content: bytes) -> None:
        run = self._one(number)
        if run.state != "incomplete" or run.init_sha256 != sha256(content).hexdigest():
            raise PlanError(f"run {number} waits for no such model; submit another run with --init")
        _, _, setup = self._hosting.resolved(self._hosting.plan(run.plan_toml))
        weights_of(setup, content)
        self._runs.give_model(number, content)
        self._now.look_again()

    def runs(self) -> list[tuple[SubmittedRun, int | None]]:
        last = self._now.committed()
        return [(run, last.get(run.number)) for run in self._runs.all()]

    def pause(self, number: int) -> None:
        self._end(number, "paused", ("queued", "incomplete"))

    def cancel(self, number: int) -> None:
        self._end(number, "cancelled", AT_REST)

    def go_on(self, number: int) -> None:
        run = self._one(number)
        if run.state not in ("paused", "failed"):
            raise PlanError(f"run {number} is {run.state}; expected one that is paused or has failed")
        waits = run.init_sha256 is not None and self._runs.model(number) is None
        self._runs.set_state(number, "incomplete" if waits else "queued", only_from=("paused", "failed"))
        self._now.look_again()

    def extend(self, number: int, extension: Extension, by: str) -> None:
        run = self._one(number)
        if run.state not in ("queued", "running", "paused", "done"):
            raise PlanError(f"run {number} is {run.state}; expected one that is queued, running, paused or done")
        under_way = self._now.committed()
        committed = under_way[number] if number in under_way else self._hosting.committed(number)
        plan = extended(self._hosting.plan(run.plan_toml), extension, committed)
        self._hosting.resolved(plan)
        change = {"at": int(time()), "after_round": committed, "by": by, **_said(extension), "plan": plan.digest}
        state = "queued" if run.state == "done" else run.state
        self._runs.change(run, plan.to_toml(), plan.digest, change, state)
        log.info("run extended", extra={"run": number, **change})
        self._now.told_to_end(number, "running")  # it is started again at once, with its new plan
        self._now.look_again()

    def roll_back(self, number: int, wanted: Rollback, by: str) -> None:
        run = self._one(number)
        if run.state not in ("paused", "done", "failed"):
            raise PlanError(f"run {number} is {run.state}; expected one that is paused, done or has failed")
        noted = self._hosting.roll_back(run, wanted.to_round, by)
        self._runs.change(run, run.plan_toml, run.plan_digest, noted, "paused")
        log.warning("run rolled back", extra={"run": number, **noted})
        self._now.offer_no_more(number)

    def ledger(self, number: int) -> RunLedger:
        self._one(number)
        with self._hosting.rounds(number) as rounds:
            return RunLedger(rounds.ledger(), ChangeLog(rounds.connections).all())

    def _end(self, number: int, state: str, resting: tuple[str, ...]) -> None:
        self._one(number)
        if self._now.told_to_end(number, state) or self._runs.set_state(number, state, only_from=resting):
            return
        if not self._now.told_to_end(number, state):  # unless it was begun just now
            found = self._one(number).state
            raise PlanError(f"run {number} is {found}; expected one that is under way or {', '.join(resting)}")

    def _one(self, number: int) -> SubmittedRun:
        found = [run for run in self._runs.all() if run.number == number]
        if not found:
            raise NoSuchRun(f"there is no run {number}; 'fedavg runs' lists them")
        return found[0]


def _said(extension: Extension) -> dict[str, Any]:
    said = {name: getattr(extension, name) for name in ("rounds", "lr", "from_round")}
    return {name: value for name, value in said.items() if value is not None}
