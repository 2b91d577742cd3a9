"""The records of a service's finished runs in the directory of a replica, whichever replica led them."""

import json
import logging
from contextlib import suppress
from typing import Final

from fedavg.errors import FedAvgError
from fedavg.fleets.http.server.logs import Seldom
from fedavg.fleets.http.server.store import Runs, StoreError, SubmittedRun
from fedavg.programs.hosting import Hosting
from fedavg.programs.shared_run import written

#: The note that says how a run of a service ended, in the run's own database.
ENDED: Final = "ended"


class RunRecords:
    """Not thread-safe: for one thread."""

    def __init__(self, runs: Runs, hosting: Hosting) -> None:
        self._runs, self._hosting = runs, hosting
        #: What was looked at already: runs by number, and what came of them.
        self._known: dict[int, str] = {}
        self._failing = Seldom(logging.getLogger("fedavg.fleet"), "cannot write the record of a run")

    def write_missing(self) -> None:
        """Write the records that are not here: another replica led those runs, or this one has lost its directory."""
        for run in self._runs.done():
            if self._known.get(run.number) == run.detail:
                continue
            try:
                if not self._has(run):
                    self._write(run)
            except FedAvgError as error:
                if isinstance(error, StoreError) and error.retryable:
                    raise
                self._failing.tell(f"run {run.number}: {error}")
            self._known[run.number] = run.detail

    def _has(self, run: SubmittedRun) -> bool:
        with suppress(OSError, ValueError, KeyError):
            summary = json.loads((self._hosting.directory(run.number) / "summary.json").read_text())
            return str(summary["model_sha256"]) in run.detail
        return False

    def _write(self, run: SubmittedRun) -> None:
        options, _, setup = self._hosting.housed(self._hosting.plan(run.plan_toml), run.number)
        with self._hosting.rounds(run.number) as rounds:
            written(setup, rounds, options, ENDED)
