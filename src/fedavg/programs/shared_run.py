"""One run as a replica serves it: it offers what the leader offers, and runs the server loop while it leads.

Offers depend only on the database, so every replica makes the same offers for the open round, and sums the updates that
it receives. How replicas agree on who leads, and which runs there are, is not known here.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import load
from starlette.routing import BaseRoute
from torch import Tensor

from fedavg.errors import FleetError
from fedavg.files import write_atomically
from fedavg.fleets.http.protocol.certs import CertifiedKey
from fedavg.fleets.http.server.claims import Claims
from fedavg.fleets.http.server.fleet import OWN_ENGINES, HttpFleet
from fedavg.fleets.http.server.gates import Gate
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.invitations import Invitation
from fedavg.fleets.http.server.judging import Asking
from fedavg.fleets.http.server.logs import Seldom
from fedavg.fleets.http.server.metrics import Requests
from fedavg.fleets.http.server.replicas.leader import Leader, Mandate
from fedavg.fleets.http.server.replicas.member import Member, SharedClaims
from fedavg.fleets.http.server.replicas.peers import INTERNAL, OfReplica, PeerEndpoints, Silent
from fedavg.fleets.http.server.rounds import Rules
from fedavg.fleets.http.server.store import RoundRow, Store, StoreError
from fedavg.fleets.http.server.store.connections import write_note
from fedavg.fleets.http.server.store.heartbeats import Heartbeats
from fedavg.fleets.http.server.store.together import ReplicaRow, SharedView, Together
from fedavg.programs.servable import Options, OwnData
from fedavg.programs.serve import follow, ledger_of, parked
from fedavg.reduction import who_trains
from fedavg.runlog.checkpoint import from_tensors
from fedavg.runlog.rundir import RunDir
from fedavg.runner import Result, finish
from fedavg.server import Start, Watcher, assigned, instructions
from fedavg.setup import Setup
from fedavg.types import Cohort

log = logging.getLogger("fedavg.fleet")

#: Seconds until a leader that did not send a model is asked for it again.
BORROW_AGAIN_S: Final = 0.5


@dataclass(frozen=True)
class Place:
    """Where other replicas reach this one: an address (by default the one that it listens on); the certificate that it
    listens with (PEM; None without TLS); and the one that it shows to servers that require client certificates."""

    url: str | None = None
    certificate: str | None = None
    shown: CertifiedKey | None = None


class SharedRun:
    """`store` has the run's rounds, and `end` is the key of the note that says that the run is over and how.

    `hub` makes the run's hub, and `requests` counts what this replica answers. `at` is the path under which replicas
    ask each other about the run, and `initial` the model that it starts from, by default its task's own.
    """

    def __init__(
        self,
        setup: Setup,
        data: OwnData,
        options: Options,
        store: Store,
        place: Place,
        hub: Callable[[Claims], Hub],
        requests: Requests,
        end: str,
        at: str = INTERNAL,
        initial: Tensor | None = None,
    ) -> None:
        self.setup, self.options, self.store = setup, options, store
        self._data, self._end, self._at, self._initial = data, end, at, initial
        self._together = Together(store.connections)
        claims = SharedClaims(self._together)
        self.hub = hub(claims)
        self._following = self._fleet(None)
        self._following.start(setup)
        releasing = self.hub if options.publish == "rounds" else None
        offers = Offers(setup, store, self._following, self.hub, releasing, self._borrowed, options.rules)
        self.member = Member(
            self._together, claims, self.hub, place.certificate, place.shown, offers.invitation,
            Heartbeats(store.connections), requests, at=at,
        )  # fmt: skip

    def close(self) -> None:
        """Leave the other replicas; call it after the last answer, since handlers use the member."""
        self.member.close()
        self.member.peers.close()
        self._following.close()

    def peer_routes(self, answered: Gate) -> list[BaseRoute]:
        """What other replicas ask this one about the run."""
        guard = OfReplica(self.member.key, lambda: self.member.replica, self.member.known)
        return PeerEndpoints(guard, answered, self.hub.presence.words, self.member.parts, self._at).routes

    def lead(self, mandate: Mandate, watch: Watcher | None = None) -> Result:
        """Run the server loop until the run is over, in the term of the store, as long as the mandate holds."""
        hub, term = self.hub, self.store.connections.term
        hub.shared.deposed = False
        leader = Leader(hub, self._together, self.member, self.member.peers, mandate)
        self.member.lead(term)
        leader.start()
        try:
            fleet = self._fleet(leader)
            result = follow(self.setup, fleet, hub, self.store, self.options, watch)
            spent = result.summary.privacy if result.summary.status == "budget spent" else None
            over = {"round": result.summary.rounds, "model": result.summary.model_sha256, "spent": spent}
            fleet.retried(lambda: self._write_end(json.dumps(over)))
            return result
        finally:
            leader.close()
            hub.shared.deposed = False
            self.member.lead(None)

    def last(self) -> Start:
        """The end of the run, from the database; its model can be fetched from now on, if it is published."""
        found = parked(self.store)
        if found is None:
            raise StoreError("the run is over, but its last state is not there; restore it")
        if self.options.publish != "none":
            self.hub.models.release(found.round, found.state.weights)
        return found

    def result(self) -> Result:
        """The result of a run that is over, as the database has it; also written to the directory."""
        return written(self.setup, self.store, self.options, self._end)

    def _fleet(self, leader: Leader | None) -> HttpFleet:
        options = self.options
        ledger = ledger_of(self.setup, self.store, options.directory) if leader else None
        return HttpFleet(
            self._data.clients, self._data.test, self.hub, self.store, options.rules, options.minimum,
            ledger=ledger, gathering=leader, initial=self._initial,
        )  # fmt: skip

    def _write_end(self, over: str) -> None:
        with self.store.connections.leading("end the run") as connection:
            write_note(connection, self._end, over)

    def _borrowed(self, of: ReplicaRow, digest: str) -> bytes:
        return self.member.peers.model(of, digest)


def written(setup: Setup, store: Store, options: Options, end: str) -> Result:
    """Write the record of a run that is over, from its database; `end` is the key of the note that says how."""
    rows, last = store.committed(), parked(store)
    if last is None or last.round != len(rows):
        raise StoreError(f"the run is over after round {len(rows)}, but its state is not there; restore it")
    write_atomically(options.directory / "plan.toml", setup.plan.to_toml().encode())
    run = RunDir(options.directory)
    run.write_rows(rows)
    over: dict[str, Any] = json.loads(store.note(end) or "{}")
    return finish(setup, rows, last.state, OWN_ENGINES, run, over.get("spent"))


class Offers:
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
        """None if the round is committed by now or of another plan, or if the model to judge cannot be obtained."""
        assert view.open
        if view.plan != self._setup.plan.digest:
            return None
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
