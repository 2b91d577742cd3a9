"""A replica among others: it polls the shared state, follows the open round, and claims the updates that it adds.

It polls several times a second, and once more before it would give a client a stale answer: each signed request fetches
the version of the shared state from the database, where its counter is used up anyway.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf
from threading import Event, RLock, Thread
from time import monotonic
from typing import Any, Final

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.certs import CertifiedKey
from fedavg.fleets.http.protocol.messages import DoneAnswer
from fedavg.fleets.http.server.claims import Claims
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.invitations import Invitation
from fedavg.fleets.http.server.limits import Buckets
from fedavg.fleets.http.server.metrics import Requests
from fedavg.fleets.http.server.refusals import Refusal, later, pace
from fedavg.fleets.http.server.replicas.overview import overview, told
from fedavg.fleets.http.server.replicas.parts import PartOfGroup, part_of
from fedavg.fleets.http.server.replicas.peers import INTERNAL, Peers, Silent
from fedavg.fleets.http.server.rounds import Receipt
from fedavg.fleets.http.server.signatures import Elsewhere
from fedavg.fleets.http.server.storage import storage_failures
from fedavg.fleets.http.server.store import StoreError
from fedavg.fleets.http.server.store.heartbeats import Heartbeat, Heartbeats
from fedavg.fleets.http.server.store.together import ReplicaRow, SharedView, Together

log = logging.getLogger("fedavg.fleet")

#: Seconds between polls of the shared state.
LOOK_S: Final = 0.1
#: Threads that query the database for request handlers.
ASKING: Final = 8
#: Seconds between heartbeats.
BEAT_S: Final = 1.0


class SharedClaims(Claims):
    """Claims updates in the database, in the name of this replica."""

    def __init__(self, together: Together) -> None:
        self._together = together
        #: This replica's number; it gets a new one each time it joins.
        self.replica = 0

    def claim(self, source: Hashable, round: int, attempt: int) -> Receipt:
        assert isinstance(source, int), "updates without names are refused at the start"
        return self._together.claim(self.replica, round, attempt, source)

    def release(self, source: Hashable, round: int, attempt: int) -> None:
        assert isinstance(source, int)
        self._together.release(self.replica, round, attempt, source)

    def fail(self, k: int, round: int, attempt: int, why: str) -> None:
        self._together.fail(round, attempt, k, why)


class Member(Elsewhere):
    """`invitation` returns what the clients of an open attempt are asked for, the same as on the leader.

    It returns None if that is unavailable, because the database has moved on or the leader does not answer.
    `certificate` is what this replica listens with, PEM, and `shown` is the one it shows to replicas that ask for one.
    """

    def __init__(
        self,
        together: Together,
        claims: SharedClaims,
        hub: Hub,
        certificate: str | None,
        shown: CertifiedKey | None,
        invitation: Callable[[SharedView], Invitation | None],
        heartbeats: Heartbeats,
        requests: Requests,
        noticed: Callable[[SharedView], None] | None = None,
        at: str = INTERNAL,
    ) -> None:
        """`noticed` is told of what changed, by default only the hub is told of clients; `at` is the path under which
        replicas ask each other about this run."""
        self._noticed = noticed or (lambda view: hub.know(view.clients))
        self._together, self._claims, self._hub, self._invitation = together, claims, hub, invitation
        self._heartbeats, self._requests = heartbeats, requests
        self._beats: list[Heartbeat] = []
        self._heard, self._next_beat = monotonic(), -inf
        self._url, self._certificate = "", certificate
        self.key = keys.ClientKey.generate()
        #: Sends requests to other replicas in the name of this one.
        self.peers = Peers(self.key, lambda: self.replica, shown, at)
        self._epoch = together.epoch()
        self._version = self._claimed = -1
        self._changed = 0
        #: When the followed attempt was opened.
        self._begun = 0.0
        self._looking = RLock()
        self._others: dict[int, ReplicaRow] = {}
        self._threads = ThreadPoolExecutor(ASKING, thread_name_prefix="database")
        self._strangers = Buckets(rate=20, burst=50)
        self._thread = Thread(target=self._look_on, name="replica", daemon=True)
        self._ended = Event()
        #: The term in which the server loop runs here: then the loop opens and closes rounds, this only notes claims.
        self._term: int | None = None
        #: Whether the leader has sealed the round: what it gathered is final, even if a replica dies.
        self.sealed = False
        self.done: DoneAnswer | None = None

    @property
    def replica(self) -> int:
        return self._claims.replica

    def start(self, url: str) -> None:
        """Join, and begin to follow. Other replicas can already reach this one at this address."""
        self._url = url
        self._join()
        self.look()
        self._thread.start()

    def certify(self, certificate: str) -> None:
        """Announce another certificate, PEM, that this replica will listen with: the others then trust both."""
        with self._looking:
            self._certificate = f"{self._certificate or ''}\n{certificate}"
            self._together.certify(self.replica, self._certificate)
            self._certificate = certificate  # used if it joins again

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._together.leave(self.replica)
        except StoreError as error:  # the leader finds out by itself
            log.warning("left without telling the others", extra={"detail": str(error)})
        self._threads.shutdown()

    @property
    def leading(self) -> bool:
        return self._term is not None

    def lead(self, term: int | None) -> None:
        """Let the server loop here open rounds in this term; None: it no longer does."""
        with self._looking:
            self._term, self.sealed = term, False
            self._version = -1
            if self._hub.collecting.waiting:  # the leader whose model was being judged is gone
                self._hub.collecting.take_back()
        self._next_beat = -inf

    async def known(self, replica: int) -> ReplicaRow | None:
        """Another replica by its number."""
        if replica not in self._others:
            pace(self._strangers.wait("replica"))
            self._others = {row.id: row for row in await self._ask(self._together.replicas)}
        return self._others.get(replica)

    def parts(self, round: int, attempt: int) -> Sequence[PartOfGroup] | None:
        """This replica's part of an attempt's sum; waits for an update that is being added."""
        collecting = self._hub.collecting
        with collecting.adding:
            for known in (collecting.current, collecting.waiting):
                if known and (known.round.round, known.round.attempt) == (round, attempt):
                    return [part_of(each) for each in known.collected]
            return None

    # Called by request handlers

    @property
    def epoch(self) -> str:
        return self._epoch

    async def find(self) -> None:
        pace(self._strangers.wait("anybody"))
        await self.catch_up()

    async def use(self, k: int, fields: keys.SignedFields) -> None:
        try:
            version = await self._ask(self._together.use, k, fields.epoch, fields.counter)
        except keys.SignatureRefused as error:
            if error.reason == "stale-epoch":
                self._epoch = await self._ask(self._together.epoch)
            raise
        if version > self._version:
            await self._ask(self.look, version)

    async def catch_up(self) -> None:
        head = await self._ask(self._together.head, self.replica)
        if head is None or head.version > self._version:
            await self._ask(self.look)

    async def hear_of_all(self) -> None:
        if not self.leading:  # the leader polls all of them anyway
            await self._ask(self._hear_of_all)

    def _hear_of_all(self) -> None:
        for row in self._together.replicas():
            if row.id != self.replica:
                with suppress(Silent):
                    self._hub.presence.hear(row.id, self.peers.present(row))

    def overview(self, own: Mapping[str, Any], operator: bool) -> dict[str, Any]:
        return overview(own, self.replica, self._beats, monotonic() - self._heard, operator)

    async def _ask(self, call: Callable[..., Any], *arguments: object) -> Any:
        if not self._url or self._ended.is_set():
            raise Refusal("busy", "this replica does not serve the run yet, or no longer; come back", later(1))
        with storage_failures():
            return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    # Looking

    def _look_on(self) -> None:
        away = False
        while not self._ended.wait(LOOK_S):
            try:
                head = self._together.head(self.replica)
                known = head is not None and head.member and head.version == self._version
                if not known or head is None or head.claimed != self._claimed:
                    self.look()
                self._beat()
                if away:
                    log.info("the database is back")
                away = False
            except StoreError as error:
                if not away:
                    log.error("the database is away", extra={"detail": str(error)})
                away = True
            except Exception:  # any error: log it and keep polling
                log.exception("cannot follow")

    def _beat(self) -> None:
        """Write this replica's status if it is time to, and read those of the others."""
        if monotonic() >= self._next_beat:
            own = self._hub.status() | {"requests_refused": dict(self._requests.by_reason)}
            self._beats = self._heartbeats.beat(self.replica, self._term, told(own))
            self._heard = monotonic()
            self._next_beat = self._heard + BEAT_S

    def look(self, version: int | None = None) -> None:
        """Read the shared state as of now, or at least up to a version."""
        with self._looking:
            if version is not None and self._version >= version:
                return
            view = self._together.view(self.replica, self._changed)
            if view is None or not view.head.member:
                self._together.epoch()
                self._join()
                view = self._together.view(self.replica, self._changed)
            if view is not None:
                self._apply(view)

    def _join(self) -> None:
        """Join as a new replica with an empty sum: what this one had claimed before is open again."""
        collecting = self._hub.collecting
        with collecting.adding:
            if self._claims.replica:
                log.warning("dropped by the others; joining again", extra={"replica": self._claims.replica})
            self._claims.replica = secrets.randbelow(2**62) + 1
            self._together.join(ReplicaRow(self.replica, self._url, self.key.public, self._certificate))
            for known in (collecting.current, collecting.waiting):
                for each in known.collected if known else ():
                    each.empty()

    def _apply(self, view: SharedView) -> None:
        self._noticed(view)
        known = self.leading or self._follow(view)
        self._note_claims(view)
        if view.done and self.done is None:
            over = json.loads(view.done)
            self.done = DoneAnswer(round=over["round"], model=over["model"], more=False, counted=None)
            self._hub.polls.finish(self.done)
        self._epoch, self._changed = view.head.epoch, view.changed
        self._version, self._claimed = view.head.version if known else -1, view.head.claimed

    def _follow(self, view: SharedView) -> bool:
        """Offer what is open, as the leader does, or nothing; false if it is not available yet."""
        collecting, row = self._hub.collecting, view.open
        if view.last_round > self._hub.history.last:
            self._hub.history.commit(view.last_round, None)
        if row is None:
            collecting.drop()
            return True
        if self._follows(view):
            return True
        if view.model_at:
            collecting.put_aside()
        else:
            collecting.take_back()
            if self._follows(view):
                return True
        with collecting.adding, self._hub.shared.changed:
            collecting.current = None
        invitation = self._invitation(view)
        if invitation is None:
            return False
        collecting.open(invitation.round, invitation.groups, cap=view.cap)
        self._begun = view.begun
        log.info("following", extra={"round": row.round, "attempt": row.attempt})
        return True

    def _follows(self, view: SharedView) -> bool:
        """Is the open attempt under way here? A model may be judged a second time, if the first leader died."""
        current, row = self._hub.collecting.current, view.open
        if current is None or row is None or (current.round.round, current.round.attempt) != (row.round, row.attempt):
            return False
        return view.model_at is None or view.begun == self._begun

    def _note_claims(self, view: SharedView) -> None:
        collecting, shared = self._hub.collecting, self._hub.shared
        with collecting.adding, shared.changed:
            current, row = collecting.current, view.open
            if current is None or row is None or self.sealed:
                return
            if (current.round.round, current.round.attempt) != (row.round, row.attempt):
                return
            own = {k for each in current.collected for k in each.sources}
            before = {k for k in current.round.accepted if isinstance(k, int)}
            accepted = set(view.claims) | own
            current.why.update(view.failed)
            failed = set(view.failed) | (self._hub.presence.revoked & set(current.round.invited))
            current.round.note(accepted, failed, sealed=view.sealed and not self.leading)
            shared.changed.notify_all()
        if before - accepted:
            shared.wake(before - accepted)
