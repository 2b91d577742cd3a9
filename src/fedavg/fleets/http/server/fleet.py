"""The fleet of real devices: rounds over HTTP for the same server loop as in simulation.

Where the simulator trains clients, this fleet invites them and waits. A round that fails is abandoned and tried again
with other clients; a server that crashed asks the same cohort again.
"""

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from secrets import token_bytes
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedavg import seeds, trees
from fedavg.cohorts import cohort_size, eligible, sample_cohort
from fedavg.data.holdout import held_out
from fedavg.engine.threads import one_thread
from fedavg.engine.trainer import Engine, Trainer
from fedavg.errors import DiskError, FedAvgError, PlanError
from fedavg.fleets.attendance import Attendance
from fedavg.fleets.fleet import Abandoned, CohortResult, Fleet, join
from fedavg.fleets.http.protocol.wire import check_names
from fedavg.fleets.http.server.gathering import Gathering, OwnSum, Total, collected, summed
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.invitations import Invitation, Invitations
from fedavg.fleets.http.server.judging import Judging
from fedavg.fleets.http.server.lookback import Lookback, losses_of, seconds_of
from fedavg.fleets.http.server.rounds import OpenRound, Rules
from fedavg.fleets.http.server.store import ATTEMPTS_APART, Deposed, Store, StoreError
from fedavg.fleets.http.server.underway import Group
from fedavg.fleets.worker import judged, test_pieces
from fedavg.metrics import add_up, report
from fedavg.metrics.spread import OnClients
from fedavg.metrics.training import masked_bounds, unmasked_sums
from fedavg.plan import Plan
from fedavg.privacy.served import Attempt, ServedLedger
from fedavg.setup import Setup
from fedavg.types import Cohort, Examples, Part, Population, Slots, Split, Sum, Work

if TYPE_CHECKING:
    from fedavg.fleets.http.server.secure import SecureRound
    from fedavg.secagg import Aggregate, ServerSession

log = logging.getLogger("fedavg.fleet")
T = TypeVar("T")

#: What a run on devices has in place of an engine.
OWN_ENGINES: Final = Engine("devices", "each client trains by its own engine")
#: Seconds between checks of whether enough clients are there, each with a line in the log.
PATIENCE_S: Final = 30.0
#: The phases of a round under secure aggregation; each gets a part of the deadline. A signed one has one more.
SECURE_PHASES: Final = 4
#: The database note that holds the session whose sum is being opened.
OPENING: Final = "opening"
#: Like `PATIENCE_S`, while some clients are at rest and could be called back.
CALL_BACK_S: Final = 3.0
#: Seconds between retries when the database does not answer: doubled each time, from the first up to the second.
RETRY_S: Final = (0.5, 15.0)


class Stopped(FedAvgError):
    """The server was told to stop; the round under way is parked and resumes at the next start."""


class HttpFleet(Fleet):
    """Clients that connect to the server. `minimum` of them must be there before a round begins; by default, a cohort.

    `gathering` is how the sum of a round comes together; by default, all of it is here. `initial` is the model to start
    from, shape (P,); by default, the task's own.

    `population` is what the plan was made for, if known; `test` is what the server itself judges models on.
    `authority` is the public key that verifies signed sessions of secure aggregation. `ledger` is the privacy that the
    run has spent; None for a run that is not private.
    """

    fingerprint = "devices"
    gives_singles = True

    def __init__(
        self,
        population: Population | None,
        test: Examples | None,
        hub: Hub,
        store: Store,
        rules: Rules,
        minimum: int | None,
        authority: bytes | None = None,
        ledger: ServedLedger | None = None,
        gathering: Gathering | None = None,
        initial: Tensor | None = None,
    ) -> None:
        self._population, self.test, self.ledger = population, test, ledger
        self._hub, self._store, self._rules, self._minimum = hub, store, rules, minimum
        self._authority, self._initial = authority, initial
        self._gathering = gathering or OwnSum(hub.collecting)
        self._session: ServerSession | None = None
        self._cohort: Sequence[int] = ()
        self.engine = OWN_ENGINES
        self._attempt = 0
        self._threads = ExitStack()

    def open(self, plan: Plan) -> Population | None:
        return self._population

    def start(self, setup: Setup) -> Tensor:
        self._setup = setup
        self._lookback = Lookback(setup.remembers)
        check_names(setup.metrics)
        self._threads.enter_context(one_thread())
        self._judge = Trainer(setup.task, setup.plan.seed)
        if self.test:
            self._judge.fit(trees.take(self.test, slice(0, 2)))
        initial = self._judge.weights.clone() if self._initial is None else self._initial
        untrained = self.evaluate(initial, "test").get("loss", inf) if setup.judged_by_server else inf
        self.invitations = Invitations(setup, self._hub.models, self._hub.guards, self._rules, len(initial), untrained)
        return initial

    def remember(self) -> Slots:
        return self._lookback.slots()

    def recall(self, slots: Slots) -> None:
        self._lookback.recall(slots)

    def close(self) -> None:
        """Leaves the listener open: it and the clients that wait there outlive the last round."""
        self._threads.close()

    def draw(self, round: int, weights: Tensor) -> Cohort:
        """The cohort of a round that was under way when the server went down, or a new one from the clients present."""
        parked = self.retried(self._store.open_round)
        if parked and parked.round == round:
            self._attempt, self._cohort = parked.attempt, parked.cohort
            if self._setup.secagg and self._opening(round) is None:
                # The session was lost with the server, before its sum was opened: clients answer only in a new one.
                self._abandon(round, "the server was started again")
            present = self._present()
            self._lookback.memory(present)
            return Cohort(parked.cohort, present.count)
        self._attempt = self.retried(lambda: self._store.next_attempt(round))
        present = self._moment()
        return Cohort(self._sample(present, round), present.count)

    def _moment(self) -> Population:
        """The clients present once there are enough: a snapshot, unaffected by later arrivals and departures."""
        while True:
            self._wait_for_clients()
            present = self._present()
            if len(eligible(present)):  # somebody may have left just now
                return present

    def _present(self) -> Population:
        """The clients that are there now, by number. A service numbers its clients itself, so numbers may exceed K."""
        sizes = self._hub.presence.sizes()
        return Population(self._clients_in_all, np.pad(sizes, (0, max(0, self._clients_in_all - len(sizes)))))

    @property
    def _clients_in_all(self) -> int:
        """K: the plan's, or the number of enrolled clients that may take part."""
        return self._setup.plan.clients or self._hub.presence.enrolled

    def _sample(self, present: Population, round: int) -> list[int]:
        """As many clients as the simulator draws, the same ones if all are there; then some more (over-selection)."""
        plan, attempt = self._setup.plan, self._attempt % ATTEMPTS_APART  # a restored run draws the same clients
        if memory := self._lookback.memory(present):  # the sampler looks back, so it draws the extra clients too
            size = min(self._rules.invited(cohort_size(plan.C, present)), present.count)
            return sample_cohort(plan, present, round, attempt, size=size, memory=memory)
        first = sample_cohort(plan, present, round, attempt)
        others = np.setdiff1d(eligible(present), np.array(first, np.int64))
        invited = min(self._rules.invited(len(first)), present.count)  # devices decline a round of more than K
        extra = min(invited - len(first), len(others))
        rng = seeds.rng(plan.seed, round, seeds.NONE, f"over-selection {attempt}")
        return first + [int(k) for k in rng.choice(others, extra, replace=False)]

    def _wait_for_clients(self) -> None:
        """Wait until a cohort is there. So that this ends, call back clients that rest only for their silence."""
        while (there := self._hub.presence.wait(self._needed, self._patience_s)) < (needed := self._needed()):
            self._check_stop()
            called = self._hub.presence.call_back(needed - there)
            log.info("waiting for clients", extra={"there": there, "needed": needed, "called_back": called})
        self._check_stop()

    @property
    def _patience_s(self) -> float:
        return CALL_BACK_S if self._hub.presence.resting else PATIENCE_S

    def _needed(self) -> int:
        """How many clients to wait for: not for those shut out, as long as the rest can make a quorum of a cohort."""
        if self._minimum is not None:
            return self._minimum
        population = self._clients_in_all
        shares = self._setup.secagg.shares if self._setup.secagg else None
        cohort = max(round(self._setup.plan.C * population), 1)
        least = max(self._rules.minimum(cohort), shares.least if shares else 0)
        return max(least, min(cohort, population - self._hub.presence.shut_out(population)))

    def train(self, cohort: Cohort, work: Work, parts: Sequence[Part]) -> CohortResult | Abandoned:
        self._cohort = cohort.clients
        if self.ledger:
            self.ledger.check(work.round, cohort.clients)
        invitation = self.invitations.new(parts, work, self._attempt)
        self._begin(work.round, cohort.clients, invitation)
        collect = self._collect_masked if self._setup.secagg else self._collect
        result = collect(invitation)
        self._hub.note_missing()
        self._lookback.learn(work.round, cohort.clients, self._hub.collecting.counted(), result)
        if isinstance(result, Abandoned):
            self._check_stop()
            self._abandon(work.round, result.reason)
            return result
        return replace(result, releases=self.ledger.releases_with(self._done(work.round))) if self.ledger else result

    def reject(self, work: Work, reason: str) -> bool:
        """Undo the round; put the clients that most likely spoiled it to rest, and ask others."""
        culprits = self._hub.collecting.spoiled(reason)
        log.warning("rejected", extra={"round": work.round, "reason": reason, "culprits": culprits})
        self._check_stop()
        self._abandon(work.round, reason)
        return True

    def committed(self, round: int) -> None:
        """The round is in the database: its privacy cost is spent."""
        if self.ledger:
            self.ledger.settle(self._done(round))

    def _done(self, round: int) -> Attempt:
        return Attempt(round, self._attempt, "done", tuple(self._cohort), tuple(self._hub.collecting.counted()))

    def _begin(self, round: int, cohort: Sequence[int], invitation: Invitation) -> None:
        attempt = self._attempt
        self.retried(lambda: self._store.begin_round(round, attempt, cohort, invitation.round.model))
        invited = len(invitation.round.invited)
        log.info("collecting", extra={"round": round, "attempt": attempt, "invited": invited})

    def _abandon(self, round: int, reason: str) -> None:
        """Abandon the attempt; the next one asks other clients. Records whose sum may have been seen."""
        attempt, opened = self._attempt, tuple(sorted(self._session.opened)) if self._session else ()
        self.retried(lambda: self._store.abandon_round(round, attempt, reason, opened))
        if self.ledger:
            self.ledger.settle(Attempt(round, attempt, "abandoned", tuple(self._cohort), opened))
        log.warning("abandoned", extra={"round": round, "attempt": attempt, "reason": reason})
        self._attempt += 1
        self._hub.rest_after_failure()

    def _collect(self, invitation: Invitation) -> CohortResult | Abandoned:
        """The sum over the updates that arrived, or why the round is abandoned."""
        totals = self._totals(invitation)
        if totals is None:
            return Abandoned(self._hub.collecting.abandoned_because())
        return self._result(invitation, totals)

    def _totals(self, invitation: Invitation) -> Sequence[Total] | None:
        return collected(invitation, self._hub.collecting, self._gathering, self.retried)

    def _collect_masked(self, invitation: Invitation) -> CohortResult | Abandoned:
        """The same under secure aggregation: nothing but the sum is ever seen here."""
        from fedavg.fleets.http.server.secure import implausible
        from fedavg.secagg import SecAggError

        self._session = None
        try:
            aggregate = self._aggregate(invitation)
        except (SecAggError, PlanError) as error:
            return Abandoned(f"secure aggregation: {error}")
        finally:
            self._hub.sessions.over()
        if aggregate is None:
            return Abandoned(self._hub.collecting.abandoned_because())
        encoding = self._hub.sessions.encoding
        decoded = encoding.decode(aggregate.ring, len(aggregate.survivors))
        examples, (group,) = self._hub.presence.examples(aggregate.survivors), invitation.groups
        measures, bounds = self._setup.measures, group.metric_bounds(max(examples))
        problem = implausible(decoded, encoding, examples, masked_bounds(measures, bounds, decoded))
        measured = unmasked_sums(measures, decoded)
        total = Sum(torch.from_numpy(decoded.vector), decoded.weight, decoded.count, sums=measured)
        if problem:  # its clients open no second sum of this round, so it ends without a change
            rest = self._hub.sessions.discard()
            log.warning("discarded", extra={"round": group.offer.round, "reason": problem, "rest": rest})
            total, decoded = Sum(torch.zeros_like(total.vector), 0.0, 0, {}), replace(decoded, saturated=0)
        up, down = self._hub.sessions.bytes_sent()
        there = Attendance(
            len(invitation.round.invited), survivors=len(aggregate.survivors), threshold=self._threshold()
        )
        return CohortResult(total, sum(up), max(up), invitation.bytes_down + down, decoded.saturated, attendance=there)

    def _threshold(self) -> int | None:
        return self._session.terms.threshold if self._session else None

    def _aggregate(self, invitation: Invitation) -> "Aggregate | None":
        """Carry a session to its end. It is stored on disk before the first client is asked to open its sum.

        A device opens one sum per round. A server that forgot which one it had asked for could never end the round.
        """
        round, (group,) = invitation.round, invitation.groups
        saved = self._opening(round.round)
        secure = self._resumed(saved) if saved else self._new_session(round, group)
        self._session = secure.session
        self._hub.collecting.open(round, [replace(group, offer=replace(group.offer, session=secure.name))], secure)
        if saved is None:
            if not self._hub.sessions.mask():
                return None
            note = {"round": round.round, "attempt": round.attempt, "session": b64encode(secure.saved()).decode()}
            self.retried(lambda: self._store.set_note(OPENING, json.dumps(note)))
        return self._hub.sessions.unmask()

    def _new_session(self, round: OpenRound, group: Group) -> "SecureRound":
        from fedavg.fleets.http.server.secure import SecureRound
        from fedavg.secagg import ServerSession

        assert self._setup.secagg
        self._setup.secagg.check(len(round.invited))
        expected = group.expected
        terms = self._setup.secagg.terms(
            token_bytes(16), round.round, round.model, len(round.invited), expected.numbers, expected.metrics
        )
        return SecureRound(ServerSession(terms, round.invited, self._authority), self._phase_s)

    def _resumed(self, saved: bytes) -> "SecureRound":
        from fedavg.fleets.http.server.secure import SecureRound

        log.info("opening again", extra={"attempt": self._attempt})
        return SecureRound.resumed(saved, self._authority, self._phase_s)

    def _opening(self, round: int) -> bytes | None:
        """The session of this attempt whose sum clients may have begun to open, if there is one."""
        note = json.loads(self.retried(lambda: self._store.note(OPENING)) or "{}")
        if (note.get("round"), note.get("attempt")) != (round, self._attempt):
            return None
        return b64decode(note["session"])

    @property
    def _phase_s(self) -> float:
        assert self._setup.secagg
        return self._rules.deadline_s / (SECURE_PHASES + self._setup.secagg.signed)

    def _result(self, invitation: Invitation, totals: Sequence[Total]) -> CohortResult:
        """The groups' sums combined; a group in which nobody answered does not count."""
        measures = self._setup.measures
        each = zip(totals, invitation.scales, invitation.staleness, strict=True)
        answered = [(summed(measures, *total, staleness), scale) for total, scale, staleness in each if total[-1]]
        result = join([total for total, _ in answered], [scale for _, scale in answered])
        if self._setup.remembers:
            result = replace(result, losses=losses_of(totals), seconds=seconds_of(totals))
        return replace(result, bytes_down=invitation.bytes_down, attendance=self._attendance(invitation, result))

    def _attendance(self, invitation: Invitation, result: CohortResult) -> Attendance:
        """Which clients were asked and why some are missing; by name only where updates may be known by name."""
        missing = self._hub.collecting.missing()
        there = result.attendance or Attendance(0)
        return replace(
            there,
            asked=len(invitation.round.invited),
            missing=missing if there.seen else {},
            counts={reason: len(clients) for reason, clients in missing.items()},
        )

    @property
    def attempt(self) -> int:
        """The attempt at the round under way."""
        return self._attempt

    def evaluate(self, weights: Tensor, on: Split) -> dict[str, float]:
        self._judge.load(weights)
        assert self.test, "the plan's evaluation is checked before round 1"
        pieces = [judged(self._judge, piece, "the test set").sums for piece in test_pieces(self._setup.task, self.test)]
        return report(self._setup.task.judged_by, add_up(pieces))

    def evaluate_on_clients(self, weights: Tensor, round: int) -> OnClients | None:
        able = np.flatnonzero(held_out(self._hub.presence.sizes(opened=True), self._setup.plan.holdout))
        phase_s = self._phase_s if self._setup.secagg else 0.0
        judging = Judging(self._setup, self._hub, self._rules, self._totals, self._authority, phase_s)
        found = judging.judged(weights, round, self._attempt, able)
        self._check_stop()
        return found

    def retried(self, call: Callable[[], T]) -> T:
        """Make a call that writes; while the database is down or the disk is full, log it and retry until it works."""
        pause, longest = RETRY_S
        while True:
            try:
                return call()
            except (StoreError, DiskError) as error:
                if isinstance(error, StoreError) and not error.retryable:
                    raise
                log.error("cannot write; trying again", extra={"detail": str(error)})
            self._hub.shared.pause(pause)
            self._check_stop()
            pause = min(2 * pause, longest)

    def _check_stop(self) -> None:
        if self._hub.shared.stopping:
            raise Stopped("stopped by the operator; start the server again with the same database to continue")
        if self._hub.shared.deposed:
            raise Deposed("another replica leads now")
