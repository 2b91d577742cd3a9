"""What the leading replica does beside the server loop: poll the others, drop those that are gone, gather the sums."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final, Protocol

from fedavg.errors import FleetError
from fedavg.fleets.http.protocol.messages import JUDGING
from fedavg.fleets.http.server.gathering import Gathering, Total
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.logs import Seldom
from fedavg.fleets.http.server.replicas.member import Member
from fedavg.fleets.http.server.replicas.parts import PartOfGroup, joined, sources_of
from fedavg.fleets.http.server.replicas.peers import Peers, Silent
from fedavg.fleets.http.server.rounds import OpenRound, RoundPhase
from fedavg.fleets.http.server.store import Deposed, StoreError
from fedavg.fleets.http.server.store.together import Judges, ReplicaRow, Together

log = logging.getLogger("fedavg.fleet")

#: Seconds between polls of all replicas, and for how long one may be silent before it is dropped.
ASK_S: Final = 0.5
SILENT_S: Final = 3.0
#: Replicas that are polled at a time.
SIDE_BY_SIDE: Final = 16


class Mandate(Protocol):
    """What makes this replica the leader."""

    def holds(self) -> bool:
        """Whether this replica still leads, as far as it knows."""


class Leader(Gathering):
    """Exists from when this replica begins to lead until it stops."""

    def __init__(self, hub: Hub, together: Together, member: Member, peers: Peers, leadership: Mandate) -> None:
        self._hub, self._together, self._member, self._peers = hub, together, member, peers
        self._leadership = leadership
        self._threads = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="leader")
        self._silent: dict[int, float] = {}
        self._unasked = Seldom(log, "cannot ask the replicas")
        #: Mandate while replicas are dropped or a round is sealed: a part that was gathered is not dropped afterwards.
        self._sealing = Lock()
        self._ended = Event()
        self._loops = [Thread(target=loop, daemon=True) for loop in (self._keep_leading, self._ask_on)]

    def start(self) -> None:
        """Learn which clients are there before any is invited."""
        with suppress(StoreError):
            self._ask_all()
        for loop in self._loops:
            loop.start()

    def close(self) -> None:
        self._ended.set()
        for loop in self._loops:
            loop.join()
        self._threads.shutdown()

    # The lock, and which clients are there

    def _keep_leading(self) -> None:
        while not self._ended.wait(ASK_S):
            if not self._leadership.holds():
                self._hub.shared.depose()
                return

    def _ask_on(self) -> None:
        while not self._ended.wait(ASK_S):
            try:
                self._ask_all()
            except Deposed:
                self._hub.shared.depose()
                return
            except StoreError as error:
                self._unasked.tell(error)
            except Exception:
                log.exception("cannot ask the replicas")

    def _ask_all(self) -> None:
        others = [row for row in self._together.replicas() if row.id != self._member.replica]
        numbers = {row.id for row in others}
        self._hub.presence.forget(numbers)
        self._peers.forget(numbers)
        self._silent = {replica: since for replica, since in self._silent.items() if replica in numbers}
        lost = [row for row, silent in zip(others, self._threads.map(self._hear, others), strict=True) if silent]
        if lost:
            self._give_up(lost, "they do not answer")

    def _hear(self, of: ReplicaRow) -> bool:
        """Ask a replica which clients are there; true if it was silent for too long."""
        try:
            self._hub.presence.hear(of.id, self._peers.present(of))
            self._silent.pop(of.id, None)
            return False
        except (Silent, ValueError) as error:
            now = monotonic()
            again = of.id in self._silent
            since = self._silent.setdefault(of.id, now)
            return (again and isinstance(error, Silent) and error.gone) or now - since > SILENT_S

    def _give_up(self, replicas: Sequence[ReplicaRow], why: str) -> None:
        with self._sealing:
            if self._member.sealed:
                return  # their parts are gathered; if not, the gathering code drops them
            self._together.give_up([row.id for row in replicas])
        log.warning("replicas dropped", extra={"replicas": [row.url for row in replicas], "reason": why})

    # The sum of a round

    def open(self, round: OpenRound, cap: float) -> float:
        self._member.sealed = False
        judges = Judges(round.model, tuple(sorted(round.invited)), self._member.replica)
        judging = judges if round.attempt >= JUDGING else None
        return self._together.open(round.round, round.attempt, round.goal, cap, judging)

    def totals(self) -> Sequence[Total] | None:
        current = self._hub.collecting.current
        assert current
        round, attempt = current.round.round, current.round.attempt
        with self._hub.shared.changed:
            enough = set(current.round.accepted)  # what the round was closed with: less needs a new decision
        with self._sealing:
            claims = self._together.seal(round, attempt)
            self._member.sealed = True
        rows = {row.id: row for row in self._together.replicas()}
        holders = sorted(set(claims.values()))
        found = list(self._threads.map(lambda of: self._parts(of, rows, round, attempt), holders))
        lost = [of for of, parts in zip(holders, found, strict=True) if sources_of(parts) != _held_by(of, claims)]
        if lost or not enough <= set(claims):
            self._open_again(lost)
            return None
        with self._hub.shared.changed:
            current.round.accepted, current.round.phase = set(claims), RoundPhase.COMMITTING
            for each, parts in zip(current.collected, zip(*found, strict=True), strict=False):
                for part in parts:
                    each.sizes.update(part.sizes)
        log.info("gathered", extra={"round": round, "attempt": attempt, "replicas": len(holders)})
        return [joined(parts) for parts in zip(*found, strict=True)]

    def _parts(self, of: int, rows: dict[int, ReplicaRow], round: int, attempt: int) -> Sequence[PartOfGroup]:
        """A replica's part of the sum; empty if it cannot be fetched."""
        if of == self._member.replica:
            return self._member.parts(round, attempt) or ()
        try:
            return self._peers.parts(rows[of], round, attempt) if of in rows else ()
        except FleetError as error:
            log.warning("a part of the sum is lost", extra={"round": round, "detail": str(error)})
            return ()

    def _open_again(self, lost: Sequence[int]) -> None:
        """The parts of some replicas are lost: ask their clients again."""
        with self._sealing:
            self._together.give_up(lost)
            self._member.sealed = False
        self._member.look()
        log.warning("replicas dropped", extra={"replicas": len(lost), "reason": "their part of the sum is lost"})


def _held_by(replica: int, claims: dict[int, int]) -> frozenset[int]:
    return frozenset(k for k, holder in claims.items() if holder == replica)
