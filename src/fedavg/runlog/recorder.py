"""`Recorder`: follows the events of a run, and writes them to its run directory, if it has one."""

from contextlib import ExitStack, nullcontext, suppress
from time import monotonic
from types import TracebackType
from typing import Any, final

import torch

from fedavg.engine.trainer import Engine
from fedavg.errors import DiskError, FedAvgError
from fedavg.fleets import Fleet
from fedavg.runlog.best import BestKeeper
from fedavg.runlog.rundir import RunDir
from fedavg.runlog.started import started_with
from fedavg.server import Event, Round, Start, Watcher, event_row
from fedavg.setup import Setup
from fedavg.types import State


@final
class Recorder:
    """The outcome of the events so far: `rows`, `state`, `engine`. However the run ends, the last good state is kept.

    A new directory is created at the first event, once the plan is known to work, so that a bad plan leaves nothing.
    """

    def __init__(
        self,
        setup: Setup,
        fleet: Fleet,
        directory: RunDir | None,
        watch: Watcher | None,
        best: BestKeeper,
        resumed_at: list[dict[str, Any]] | None = None,
    ) -> None:
        """`resumed_at` has the rows that a resumed run starts with; a new run has none."""
        self.rows = resumed_at or []
        self.state = State(torch.empty(0))
        self.engine = Engine("", "")
        self._setup, self._fleet, self._directory, self._watch, self._best = setup, fleet, directory, watch, best
        self._resumed = resumed_at is not None
        self._last: Event | None = None
        self._saved_at = monotonic()
        self._locks = ExitStack()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._locks:
            if self._directory and self._last and not isinstance(error, DiskError):  # do not hide that error
                with suppress(FedAvgError) if error else nullcontext():
                    self._checkpoint(self._directory, self._last)

    def record(self, event: Event) -> None:
        if isinstance(event, Round):
            self._best.note(event_row(event), event.state.weights)
        if self._directory:
            self._write(self._directory, event)
        self.state = event.state
        if isinstance(event, Start):
            self.engine = Engine(event.engine, event.engine_reason)
        else:
            self.rows.append(event_row(event))
        if self._watch:
            self._watch(event)

    def _write(self, directory: RunDir, event: Event) -> None:
        private = self._setup.budget is not None
        if isinstance(event, Start):
            self._write_start(directory, event)
        else:
            if private:  # state and ledger entry in one file, before the round is published
                self._checkpoint(directory, event)
            directory.append(event_row(event), durable=private)
        self._last = event
        due = not private and monotonic() - self._saved_at >= self._setup.plan.checkpoint_s
        if due or isinstance(event, Start):
            self._checkpoint(directory, event)

    def _write_start(self, directory: RunDir, event: Start) -> None:
        setup, facts = self._setup, started_with(self._setup)
        if self._resumed:
            directory.check_engine(event.engine)
            directory.check_frozen(self._fleet.frozen)
            directory.check_facts(facts)
            directory.extend(setup.plan)
            return
        directory.create(setup.plan)
        self._locks.enter_context(directory.locked())
        frozen = {"frozen": self._fleet.frozen} if self._fleet.frozen else {}
        identity = facts | {"engine_reason": event.engine_reason} | frozen
        directory.write_identity(setup.plan, event.engine, self._fleet.fingerprint, identity)

    def _checkpoint(self, directory: RunDir, event: Event) -> None:
        row = event_row(event) if isinstance(event, Round) else None
        self._best.save()
        self._fleet.flush_states()
        directory.checkpoint(event.round, event.state, self._setup.plan.digest, row)
        self._saved_at = monotonic()
