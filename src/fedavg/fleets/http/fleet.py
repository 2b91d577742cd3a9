"""The fleet of real devices: rounds over HTTP for the same server loop as in simulation.

Where the simulator trains clients, this one invites them and waits. A round that does not come together is abandoned
and tried again with other clients; a server that crashed asks the same cohort again.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from math import fsum, isfinite
from time import monotonic
from typing import Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedavg import seeds
from fedavg.cohort import sample_cohort
from fedavg.engine.trainer import Engine, Trainer
from fedavg.errors import DiskError, FedAvgError
from fedavg.fleets.fleet import CohortResult, Fleet
from fedavg.fleets.http.hub import Hub, Received
from fedavg.fleets.http.messages import WorkOffer
from fedavg.fleets.http.rounds import Phase, Round, Rules
from fedavg.fleets.http.store import Store, StoreError
from fedavg.fleets.http.wire import Expected
from fedavg.fleets.worker import Evaluated, Worker, combine, eval_jobs
from fedavg.setup import Setup
from fedavg.types import Split, Sum, Work

log = logging.getLogger("fedavg.fleet")
T = TypeVar("T")

#: Seconds between looks at whether enough clients are there, each with a line in the log.
PATIENCE_S: Final = 30.0
#: Seconds between tries when the database does not answer: doubled each time up to the second.
RETRY_S: Final = (0.5, 15.0)


class Stopped(FedAvgError):
    """The server was told to stop; the round under way is parked and goes on at the next start."""


class HttpFleet(Fleet):
    """Clients that come to the server. `minimum` of them must be there before a run begins."""

    def __init__(self, setup: Setup, hub: Hub, store: Store, rules: Rules, minimum: int) -> None:
        self._setup, self._hub, self._store, self._rules, self._minimum = setup, hub, store, rules, minimum
        self.engine = Engine("devices", "each client trains by its own engine")
        self._attempt = 0

    def start(self) -> Tensor:
        trainer = Trainer(self._setup.task, self._setup.plan.seed)
        initial = trainer.weights.clone()
        self._size = len(initial)
        self._judge = Worker(self._setup, trainer, initial, torch.zeros(1, dtype=torch.int64), None)
        self._weights = initial
        return initial.clone()

    def close(self) -> None:
        """Nothing of its own: the listener, and the clients that wait there, outlive the last round."""

    def pick(self, work: Work) -> Sequence[int]:
        """The cohort of a round that was under way when the server went down, or a new one of those who are there."""
        parked = self.retried(self._store.open_round)
        if parked and parked.round == work.round:
            self._attempt = parked.attempt
            return parked.cohort
        self._attempt = self.retried(lambda: self._store.next_attempt(work.round))
        return self._draw(work.round)

    def _draw(self, round: int) -> list[int]:
        """As many as the simulator would draw, and the same, if all are there; then some more (over-selection)."""
        self._wait_for(self._minimum)
        first = sample_cohort(self._setup, round, self._attempt)
        others = np.setdiff1d(self._setup.eligible, first)
        extra = min(self._rules.invited(len(first)) - len(first), len(others))
        rng = seeds.rng(self._setup.plan.seed, round, seeds.NONE, f"over-selection {self._attempt}")
        return first + [int(k) for k in rng.choice(others, extra, replace=False)]

    def _wait_for(self, needed: int) -> None:
        while (there := self._hub.wait_for_clients(needed, PATIENCE_S)) < needed:
            self._check_stop()
            log.info("waiting for clients", extra={"there": there, "needed": needed})

    def train(self, cohort: Sequence[int], work: Work, shared: Tensor) -> CohortResult:
        digest = self._hub.publish(shared)
        while True:
            attempt = self._attempt
            self.retried(lambda c=cohort, a=attempt: self._store.begin_round(work.round, a, c, digest))  # type: ignore[misc]
            self._hub.open(*self._invitation(cohort, work, digest, len(shared)))
            log.info("collecting", extra={"round": work.round, "attempt": attempt, "invited": len(cohort)})
            phase = self._hub.collect()
            if phase is Phase.COMMITTING:
                return self._result(len(cohort) * 4 * len(shared))
            self._check_stop()
            reason = self._hub.abandoned_because()
            self.retried(lambda a=attempt, r=reason: self._store.abandon_round(work.round, a, r))  # type: ignore[misc]
            log.warning("abandoned", extra={"round": work.round, "attempt": attempt, "reason": reason})
            self._attempt += 1
            cohort = self._draw(work.round)

    def _invitation(
        self, cohort: Sequence[int], work: Work, digest: str, numbers: int
    ) -> tuple[Round, WorkOffer, Expected]:
        goal = self._rules.goal(len(cohort))
        round = Round(
            work.round,
            self._attempt,
            digest,
            frozenset(cohort),
            goal,
            self._rules.minimum(goal),
            monotonic() + self._rules.deadline_s,
        )
        offer = WorkOffer(
            round=work.round,
            attempt=self._attempt,
            model=digest,
            numbers=numbers,
            deadline_s=self._rules.deadline_s,
            epochs=work.epochs,
            batch=work.batch if isfinite(work.batch) else None,
            lr=work.lr,
            settings=dict(work.settings),
            upload_token=None,
        )
        expected = Expected(
            plan=self._setup.plan.digest,
            round=work.round,
            attempt=self._attempt,
            model=digest,
            codec=self._setup.codec,
            numbers=self._size * self._setup.algorithm.vectors_up,
            max_weight=self._hub.guards.max_weight,
            max_norm=self._hub.guards.max_norm,
            metrics=self._setup.metrics,
        )
        return round, offer, expected

    def _result(self, bytes_down: int) -> CohortResult:
        vector, received = self._hub.total()
        total = Sum(vector, fsum(r.weight for r in received), len(received), _weighted_means(received))
        sent = [r.bytes_up for r in received]
        return CohortResult(total, sum(sent), max(sent), bytes_down)

    @property
    def attempt(self) -> int:
        """The attempt at the round under way."""
        return self._attempt

    def evaluate(self, weights: Tensor, on: Split) -> dict[str, float]:
        self._weights.copy_(weights)
        results: Iterable[object] = (self._judge.do(job) for job in eval_jobs(self._setup, on))
        return combine([result for result in results if isinstance(result, Evaluated)])

    def retried(self, call: Callable[[], T]) -> T:
        """A call that writes; while the database is away or there is no space, say so, and try until it works."""
        pause, longest = RETRY_S
        while True:
            try:
                return call()
            except (StoreError, DiskError) as error:
                if isinstance(error, StoreError) and not error.retryable:
                    raise
                log.error("can not write; trying again", extra={"detail": str(error)})
            self._hub.pause(pause)
            self._check_stop()
            pause = min(2 * pause, longest)

    def _check_stop(self) -> None:
        if self._hub.stopping:
            raise Stopped("stopped by the operator; start the server again with the same database to go on")


def _weighted_means(received: list[Received]) -> dict[str, float]:
    weight = fsum(r.weight for r in received)
    return {name: fsum(r.weight * r.metrics[name] for r in received) / weight for name in received[0].metrics}
