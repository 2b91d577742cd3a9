"""One of several processes that are one server (docs/replicas.md): it answers clients, and leads if nobody else does.

The server loop runs in the replica that leads. Offers depend only on the database, so every other replica makes the
same offers for the open round, and sums the updates that it receives.
"""

import gc
import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Final

import numpy as np
import torch
from safetensors.torch import load

from fedavg.errors import FleetError, PlanError
from fedavg.fleets.http.protocol.certs import CertifiedKey, check_admitted
from fedavg.fleets.http.protocol.messages import DoneAnswer
from fedavg.fleets.http.server.app import FleetApp
from fedavg.fleets.http.server.conduct import FIRST_REST
from fedavg.fleets.http.server.fleet import HttpFleet, Stopped
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.invitations import Invitation
from fedavg.fleets.http.server.judging import Asking
from fedavg.fleets.http.server.logs import Seldom
from fedavg.fleets.http.server.metrics import Requests
from fedavg.fleets.http.server.replicas.leader import Leader
from fedavg.fleets.http.server.replicas.member import Member, SharedClaims
from fedavg.fleets.http.server.replicas.peers import OfReplica, PeerEndpoints, Silent
from fedavg.fleets.http.server.rounds import Rules
from fedavg.fleets.http.server.store import Deposed, RoundRow, Store, StoreError
from fedavg.fleets.http.server.store.address import is_postgresql
from fedavg.fleets.http.server.store.connections import write_note
from fedavg.fleets.http.server.store.heartbeats import Heartbeats
from fedavg.fleets.http.server.store.leadership import Leadership
from fedavg.fleets.http.server.store.together import DONE, ReplicaRow, SharedView, Together
from fedavg.plan import Plan
from fedavg.programs.hosting import check_restored
from fedavg.programs.servable import (
    Options,
    OwnData,
    by_closing,
    check_minimum,
    check_options,
    own_data,
    resolve_served,
)
from fedavg.programs.serve import (
    follow,
    ledger_of,
    listening,
    parked,
    say_goodbye,
)
from fedavg.programs.signals import heeding_signals, reload_certificates
from fedavg.reduction import who_trains
from fedavg.runlog.checkpoint import from_tensors
from fedavg.runlog.rundir import RunDir
from fedavg.runner import Result, finish
from fedavg.server import Watcher, assigned, instructions
from fedavg.setup import Setup, pinned
from fedavg.types import Cohort

log = logging.getLogger("fedavg.fleet")

#: Seconds between tries to lead.
TRY_S: Final = 0.3
#: Seconds until a leader that did not send a model is asked for it again.
BORROW_AGAIN_S: Final = 0.5
#: Addresses that mean every address of a machine: others cannot reach a replica by them.
WILDCARDS: Final = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Place:
    """Where other replicas reach this one: an address (by default the one that it listens on); the certificate that it
    listens with (PEM; None without TLS); and the one that it shows to servers that require client certificates."""

    url: str | None = None
    certificate: str | None = None
    shown: CertifiedKey | None = None


def serve_replica(
    plan: Plan,
    options: Options,
    place: Place,
    watch: Watcher | None = None,
    ready: Callable[[int], None] | None = None,
) -> Result:
    """Be one of the replicas that serve a plan until its last round, whoever leads then."""
    check_options(plan, options)
    plan = pinned(plan)
    data = own_data(plan)
    options = by_closing(plan, data, options)
    setup = resolve_served(plan, data, options.rules)
    check_minimum(setup, options.minimum)
    _check_replica(setup, options, place)
    options.directory.mkdir(parents=True, exist_ok=True)
    assert options.database
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(options.database))
        store.old_states_kept = options.keep_rounds
        check_restored(setup, store)
        leadership = Leadership(store.connections, f"{options.listen.host}:{options.listen.port}")
        stack.callback(leadership.close)
        leadership.attend()
        replica = _Replica(setup, data, options, store, leadership, Together(store.connections), place)
        return replica.run(stack, watch, ready)


def _check_replica(setup: Setup, options: Options, place: Place) -> None:
    """Refuse what replicas cannot do, with the reason."""
    if not is_postgresql(options.database):
        raise PlanError(
            f"--replica: got {'no --db' if not options.database else '--db with another database'}; expected --db "
            "postgresql://..., the one that all replicas share"
        )
    reasons = {
        "a rule over single updates": (
            setup.single_updates,
            "single updates stay in the process that received them",
        ),
        "secagg": (setup.secagg is not None, "the session of a round is in the memory of one process"),
        "--anonymous": (options.guards.anonymous, "upload tokens are in the memory of the process that gave them"),
    }
    for name, (asked, why) in reasons.items():
        if asked:
            raise PlanError(f"--replica: got a run with {name}: {why}; expected none, or a server that is alone")
    if options.tls and place.shown:
        check_admitted(options.tls, place.shown)
    if place.url is None and options.listen.host in WILDCARDS:
        raise PlanError(
            f"--replica: got --listen {options.listen.host}, where others cannot reach this replica; expected "
            "--replica-url with the address where they can"
        )


class _Replica:
    """One replica from start to end."""

    def __init__(
        self,
        setup: Setup,
        data: OwnData,
        options: Options,
        store: Store,
        leadership: Leadership,
        together: Together,
        place: Place,
    ) -> None:
        self._setup, self._data, self._options, self._store = setup, data, options, store
        self._leadership, self._together, self._place = leadership, together, place
        claims = SharedClaims(together)
        self._hub = Hub(options.guards, FIRST_REST * options.rules.deadline_s, claims)
        self._following = self._fleet(None)
        self._following.start(setup)
        releasing = self._hub if options.publish == "rounds" else None
        offers = _Offers(setup, store, self._following, self._hub, releasing, self._borrowed, options.rules)
        self._requests = Requests()
        heartbeats = Heartbeats(store.connections)
        self._member = Member(
            together, claims, self._hub, place.certificate, place.shown, offers.invitation, heartbeats, self._requests
        )
        self._peers = self._member.peers
        self._not_leading = Seldom(log, "cannot lead")

    def _borrowed(self, of: ReplicaRow, digest: str) -> bytes:
        return self._peers.model(of, digest)

    def run(self, stack: ExitStack, watch: Watcher | None, ready: Callable[[int], None] | None) -> Result:
        plan, options, hub, store, member = (
            self._setup.plan, self._options, self._hub, self._store, self._member,
        )  # fmt: skip
        stack.callback(self._peers.close)
        stack.callback(self._following.close)
        store.save_run(plan.to_toml(), plan.digest, "devices")
        hub.know(store.clients())
        app = FleetApp(plan, hub, store, member, self._requests)
        stack.callback(app.close)
        guard = OfReplica(member.key, lambda: member.replica, member.known)
        peers = PeerEndpoints(guard, app.answered, hub.presence.words, member.parts)
        stack.enter_context(heeding_signals(hub.stop, lambda: reload_certificates(options.reload, member.certify)))
        stack.callback(member.close)  # after the last answer: handlers use it
        listen = stack.enter_context(listening(app, plan, hub, store, options, peers.routes))
        scheme = "https" if options.tls else "http"
        member.start(self._place.url or f"{scheme}://{options.listen.host}:{listen.port}")
        gc.collect()
        gc.freeze()
        if ready:
            ready(listen.port)
        result = self._lead_or_follow(watch)
        say_goodbye(hub, result, options.linger_s, listen.connections)
        return result

    def _fleet(self, leader: Leader | None) -> HttpFleet:
        options = self._options
        ledger = ledger_of(self._setup, self._store, options.directory) if leader else None
        return HttpFleet(
            self._data.clients, self._data.test, self._hub, self._store, options.rules, options.minimum,
            ledger=ledger, gathering=leader,
        )  # fmt: skip

    def _lead_or_follow(self, watch: Watcher | None) -> Result:
        """Lead or follow until the run is over, wherever it is led."""
        shared = self._hub.shared
        while True:
            if shared.stopping:
                raise Stopped("stopped by the operator; the other replicas continue, or this one once restarted")
            try:
                if self._member.done:
                    return self._result(self._member.done)
                if self._leadership.attempt(self._member.replica) is not None:
                    return self._lead(watch)
            except Deposed as error:
                log.warning("no longer leading", extra={"detail": str(error)})
            except StoreError as error:
                if not error.retryable:
                    raise
                self._not_leading.tell(error)
            shared.pause(TRY_S)

    def _lead(self, watch: Watcher | None) -> Result:
        hub, term = self._hub, self._store.connections.term
        log.info("leading", extra={"term": term, "replica": self._member.replica})
        hub.shared.deposed = False
        leader = Leader(hub, self._together, self._member, self._peers, self._leadership)
        self._member.lead(term)
        leader.start()
        try:
            fleet = self._fleet(leader)
            result = follow(self._setup, fleet, hub, self._store, self._options, watch)
            spent = result.summary.privacy if result.summary.status == "budget spent" else None
            over = {"round": result.summary.rounds, "model": result.summary.model_sha256, "spent": spent}
            fleet.retried(lambda: self._write_done(json.dumps(over)))
            return result
        finally:
            leader.close()
            self._leadership.resign()
            hub.shared.deposed = False
            self._member.lead(None)

    def _write_done(self, over: str) -> None:
        with self._store.connections.leading("end the run") as connection:
            write_note(connection, DONE, over)

    def _result(self, done: DoneAnswer) -> Result:
        """The result of the run, for a replica that did not lead at the end."""
        rows, start = self._store.committed(), parked(self._store)
        if start is None or start.round != done.round:
            raise StoreError(f"the run is over after round {done.round}, but its state is not there; restore it")
        if self._options.publish != "none":
            self._hub.models.release(start.round, start.state.weights)
        run = RunDir(self._options.directory)
        run.write_rows(rows)
        over = json.loads(self._store.note(DONE) or "{}")
        return finish(self._setup, rows, start.state, self._following.engine, run, over.get("spent"))


class _Offers:
    """The same offers to clients as the leader makes, bit for bit.

    The work of a round follows from the database alone. A model that is to be judged is not in the database yet:
    `borrowed` returns its bytes, from the replica that has it.
    """

    def __init__(
        self,
        setup: Setup,
        store: Store,
        fleet: HttpFleet,
        hub: Hub,
        releasing: Hub | None,
        borrowed: Callable[[ReplicaRow, str], bytes],
        rules: Rules,
    ) -> None:
        """`releasing` receives the model of each committed round, if clients may download it."""
        self._setup, self._store, self._fleet, self._releasing = setup, store, fleet, releasing
        self._asking, self._borrowed, self._rules = Asking(setup, hub, rules), borrowed, rules
        self._not_borrowed = Seldom(log, "cannot offer the model to judge")
        self._borrow_again = -inf

    def invitation(self, view: SharedView) -> Invitation | None:
        """None if the round is committed by now, or if the model to judge cannot be obtained."""
        assert view.open
        found = self._judging(view.open, view.model_at) if view.model_at else self._training(view.open)
        if found:
            found.round.deadline = monotonic() - view.age_s + self._rules.deadline_s
        return found

    def _training(self, row: RoundRow) -> Invitation | None:
        """The same models and numbers as the leader's."""
        found = self._store.last_state()
        if found is None or found[0] != row.round - 1:
            return None
        state = from_tensors(load(found[1]))
        if self._releasing and found[0]:
            self._releasing.models.release(found[0], state.weights)
        work = instructions(self._setup, state, row.round)
        _, parts = assigned(self._setup, state, work, Cohort(row.cohort, len(row.cohort)))
        invitation = self._fleet.invitations.new(who_trains(self._setup, parts), work, row.attempt)
        if invitation.round.model != row.model_sha256:
            raise FleetError(
                f"round {row.round} is of model {row.model_sha256}, and from the same state this replica makes "
                f"{invitation.round.model}; expected replicas of the same version on the same kind of machine"
            )
        return invitation

    def _judging(self, row: RoundRow, model_at: ReplicaRow) -> Invitation | None:
        """A leader that did not send its model is not asked again at once, because handlers wait for the answer."""
        if monotonic() < self._borrow_again:
            return None
        try:
            content = self._borrowed(model_at, row.model_sha256)
        except Silent as error:
            self._not_borrowed.tell(error)
            self._borrow_again = monotonic() + BORROW_AGAIN_S
            return None
        weights = torch.from_numpy(np.frombuffer(content, "<f4").astype(np.float32))
        return self._asking.invitation(row.cohort, row.round, row.attempt, weights)
