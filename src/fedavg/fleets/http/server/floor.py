"""Assigns each client to one of the runs that a service serves side by side.

Runs take turns with the clients. The run that has waited longest gets all free clients; when its round is open, the
clients that it did not invite are free again, and the next run has its turn. A client that is invited, or is in a sum
that is not committed yet, stays. When a run is over, each of its clients returns to it once more to be told so.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import RLock
from time import monotonic
from typing import Final

from starlette.types import Scope

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.messages import PlanAnswer
from fedavg.fleets.http.server.app import FleetApp
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.store import ClientRow, allows

#: Seconds for which a finished run stays to tell its clients, while other runs are served.
LINGER_S: Final = 120.0
#: For this many runs that were taken down, the clients that were told are remembered; clients of earlier ones are told
#: again.
TOLD_KEPT: Final = 8
_POLL: Final = "/v1/poll"
_LATEST: Final = "/v1/models/latest"
#: What a client sends about the work that it was offered.
_WORK: Final = ("/v1/rounds/", "/v1/report")
#: What replicas ask each other about a run, before its number.
OF_RUN: Final = "/internal/runs/"


@dataclass
class Stand:
    """One run on the floor. `held` closes its resources."""

    number: int
    app: FleetApp
    task: str
    held: ExitStack
    #: When it began to wait for clients, on this process's clock.
    since: float = field(default_factory=monotonic)
    #: When it ended.
    over: float | None = None
    #: Clients that were ever assigned to it.
    visitors: set[int] = field(default_factory=set)

    @property
    def hub(self) -> Hub:
        return self.app.hub

    @property
    def has_turn(self) -> bool:
        """Whether it may draw a cohort and has not done so yet."""
        return self.hub.presence.turn.given

    def give_turn(self) -> None:
        """Give it the turn. It queues for its next turn from now on, however soon its next round begins."""
        if not self.has_turn:
            self.since = monotonic()
        with self.hub.shared.changed:
            self.hub.presence.turn.given = True
            self.hub.shared.changed.notify_all()

    def has_told(self, k: int) -> bool:
        """Whether this client knows that the run is over."""
        return k in self.hub.polls.told()

    def untold(self) -> set[int]:
        """The clients that took part and do not know yet that the run is over."""
        return set() if self.over is None else self.app.took - self.hub.polls.told() - self.hub.presence.revoked


class Floor:
    """Thread-safe."""

    def __init__(self, front: Callable[["Floor"], FleetApp]) -> None:
        self._lock = RLock()
        self._stands: dict[int, Stand] = {}
        self._at: dict[int, int] = {}
        #: For runs that were taken down: the clients that were told that the run is over.
        self._told: dict[int, set[int]] = {}
        #: The application for clients that are at no run.
        self.front = front(self)

    # Runs come and go

    def put_up(self, stand: Stand) -> None:
        """Offer a run; it replaces an earlier plan of the same run."""
        with self._lock:
            before = self._stands.pop(stand.number, None)
            self._told.pop(stand.number, None)
            if before is not None:
                stand.visitors |= before.visitors
            for other in [other for other in self._stands.values() if other.over is not None]:
                if not self._still_wanted(other):
                    self._drop(other)
            self._stands[stand.number] = stand
            self._count()
        self._wake(self.front)
        for other in self._all():
            self._wake(other.app)
        if before is not None:
            before.held.close()

    def end(self, number: int) -> None:
        """The run is over: it stays until its clients know."""
        with self._lock:
            if number in self._stands:
                self._stands[number].over = monotonic()
                self._count()

    def take_down(self, number: int) -> None:
        """Stop offering a run."""
        with self._lock:
            stand = self._stands.pop(number, None)
            if stand is None:
                return
            self._at = {k: at for k, at in self._at.items() if at != number}
            self._count()
        self._wake(stand.app)
        stand.held.close()

    def has_told(self, k: int, number: int) -> bool:
        """Whether a client was told here that a run is over."""
        with self._lock:
            stand = self._stands.get(number)
            return stand.has_told(k) if stand else k in self._told.get(number, ())

    def has(self, number: int) -> bool:
        """Whether a run is on the floor, be it over or not."""
        with self._lock:
            return number in self._stands

    def model(self, digest: str) -> bytes | None:
        """A model that one of the runs offers, by its SHA-256."""
        found = self._first(lambda stand: stand.hub.models.content(digest) is not None)
        return found.hub.models.content(digest) if found else None

    def send_back(self, k: int, number: int) -> bool:
        """Send a client back to a finished run to be told so; false if that run is not here."""
        with self._lock:
            stand = self._stands.get(number)
            if stand is None or stand.over is None:
                return False
            stand.app.took.add(k)
            self._move(k, stand, here=False)
            return True

    def close(self) -> None:
        for stand in self._all():
            self.take_down(stand.number)

    def know(self, rows: Sequence[ClientRow]) -> None:
        """Pass client rows from the database to every run."""
        for hub in (self.front.hub, *(stand.hub for stand in self._all())):
            hub.know(rows)

    # Where a request goes

    def app_for(self, scope: Scope) -> FleetApp:
        path = scope["path"]
        headers = {name: value for name, value in scope["headers"] if name.startswith(b"fedavg-")}
        found = None
        if path.startswith("/v1/models/") and path != _LATEST:
            found = self._first(lambda stand: stand.hub.models.content(path.split("/")[3]) is not None)
            found = found or next(iter(self._live()), None)  # another replica may offer it already
        elif path.startswith(OF_RUN):
            number = path.removeprefix(OF_RUN).partition("/")[0]
            found = self._first(lambda stand: str(stand.number) == number)
        elif path.endswith("/anonymous"):
            token = headers.get(b"fedavg-upload-token", b"").decode("latin-1")
            found = self._first(lambda stand: stand.hub.intake.token_source(token) is not None)
        elif (client := headers.get(keys.CLIENT.lower().encode(), b"")).isdigit():
            found = self._of_client(int(client), path)
        elif path in ("/metrics", "/v1/status"):
            found = self._shown()
        return found.app if found else self.front

    def _of_client(self, k: int, path: str) -> Stand | None:
        with self._lock:
            stand = self._stands.get(self._at.get(k, 0))
            if path == _POLL and (stand is None or (stand.over is not None and k not in stand.untold())):
                stand = self._choice(k)
                if stand is None:
                    self._at.pop(k, None)
                else:
                    self._at[k] = stand.number
                    stand.visitors.add(k)
            if stand is None and path == _LATEST:
                return self._latest_of(k)
            if (stand is None or stand.over is not None) and path.startswith(_WORK):
                # the client was offered its work by another replica; the work itself says which run it is of
                return next((live for live in self._live() if self._allows(k, live)), stand)
            return stand

    def _latest_of(self, k: int) -> Stand | None:
        """The run whose model a client without a run may fetch: its last one here, or else the one that ended last."""
        been = [stand for stand in self._stands.values() if k in stand.visitors]
        over = [stand for stand in self._stands.values() if stand.over is not None and self._allows(k, stand)]
        return max(been, key=lambda s: s.number, default=max(over, key=lambda s: s.over or 0.0, default=None))

    def moved_on(self, k: int, named: int | None) -> bool:
        """A client that names another run than a finished one knows that it is over, from another replica.

        Returns whether the client was to be told so here: then it belongs elsewhere from now on.
        """
        with self._lock:
            for stand in self._stands.values():
                if stand.number != named and k in stand.untold():
                    stand.hub.polls.knows(k)
            at = self._stands.get(self._at.get(k, 0))
            left = at is not None and at.over is not None and at.number != named
            if left:
                del self._at[k]
            return left

    def _choice(self, k: int) -> Stand | None:
        """A finished run that has not told this client yet; otherwise the first run that its owner allows."""
        row = self.front.hub.presence.client(k)
        if row is None:
            return None
        waiting = [stand for stand in self._stands.values() if k in stand.untold()]
        live = [stand for stand in self._live() if allows(row, stand.task)]
        return next(iter((*waiting, *live)), None)

    def another_plan(self, k: int, number: int) -> PlanAnswer | None:
        """The plan of the run that this client is at by now, if that is another one.

        Never of one whose end the client knows: it would take the run up again, and after a restart it would be told a
        second time.
        """
        with self._lock:
            stand = self._stands.get(self._at.get(k, number))
            if stand is None or stand.number == number or stand.has_told(k):
                return None
            return stand.app.plan_answer

    def _shown(self) -> Stand | None:
        """The run in the public status: the first that is under way, or the last."""
        with self._lock:
            return next(iter(self._live()), max(self._stands.values(), key=lambda s: s.number, default=None))

    @property
    def shown(self) -> FleetApp:
        stand = self._shown()
        return stand.app if stand else self.front

    # Who moves

    def balance(self) -> None:
        """Move clients to runs that wait for them. Called periodically."""
        with self._lock:
            live = self._live()
            for stand in [stand for stand in self._stands.values() if stand.over is not None]:
                for k in stand.untold():
                    if self._free(k):
                        self._move(k, stand, here=False)
                if not self._still_wanted(stand) and len(self._stands) > 1:
                    self._drop(stand)
            if len(live) > 1:
                self._take_turns(live)

    def _take_turns(self, live: Sequence[Stand]) -> None:
        for stand in live:  # a round that was parked invites its clients wherever they are
            for k in stand.hub.collecting.awaited():
                if self._at.get(k) != stand.number and self._free(k):
                    self._move(k, stand)
        there = {stand.number: stand.hub.presence.there() for stand in live}
        everyone = {k for clients in there.values() for k in clients}
        taken: set[int] = set()
        for stand in self._in_turn(live):
            needed = stand.hub.presence.lacking or 0
            allowed = {k for k in everyone - taken if self._allows(k, stand)}
            if len(allowed) < needed:  # it cannot get enough clients, so it must not hold up the others
                continue
            taken |= allowed
            moved = {k for k in allowed - there[stand.number] if self._free(k)}
            for k in moved:
                self._move(k, stand)
            if len(moved | (there[stand.number] & allowed)) >= needed:
                stand.give_turn()
        for stand in live:
            self._send_on(stand, live)

    @staticmethod
    def _in_turn(live: Sequence[Stand]) -> list[Stand]:
        """The runs that wait for clients or a turn: those with an unused turn, then those that have waited longest."""
        now = monotonic()
        waiting = [stand for stand in live if stand.hub.presence.lacking is not None]
        for stand in live:
            if stand not in waiting:
                stand.since = now
        return sorted(waiting, key=lambda stand: (not stand.has_turn, stand.since, stand.number))

    def _send_on(self, stand: Stand, live: Sequence[Stand]) -> None:
        """Move clients that are not eligible for this run to another one."""
        for k in stand.hub.presence.away():
            if self._at.get(k) == stand.number:
                others = (other for other in live if k not in other.visitors and self._allows(k, other))
                if (other := next(others, None)) is not None:
                    self._move(k, other, here=False)

    def _free(self, k: int) -> bool:
        stand = self._stands.get(self._at.get(k, 0))
        if stand is None:
            return True
        if stand.hub.polls.finished:  # a client that was just told fetches the model next; its next poll moves it
            return False
        return not stand.hub.collecting.keeps(k)

    def _allows(self, k: int, stand: Stand) -> bool:
        row = self.front.hub.presence.client(k)
        return row is not None and allows(row, stand.task)

    def _move(self, k: int, to: Stand, here: bool = True) -> None:
        """Move a client to another run. With `here` it counts as present at once: it arrives with its next poll."""
        before = self._stands.get(self._at.get(k, 0))
        if before is to:
            return
        self._at[k] = to.number
        to.visitors.add(k)
        hub = before.hub if before else self.front.hub
        row = hub.presence.client(k)
        if row is not None:
            to.hub.know([row])
        if before is not None:
            hub.presence.see(k, False)
        if here:
            to.hub.presence.see(k, True)
        hub.shared.wake([k])

    # Helpers

    def _count(self) -> None:
        """Tell each run whether there are others: a single run needs no turns."""
        live = self._live()
        for stand in live:
            with stand.hub.shared.changed:
                stand.hub.presence.turn.several = len(live) > 1
                stand.hub.shared.changed.notify_all()

    def _live(self) -> list[Stand]:
        return sorted((s for s in self._stands.values() if s.over is None), key=lambda stand: stand.number)

    def _still_wanted(self, stand: Stand) -> bool:
        """Whether a finished run must stay: clients that were just told may fetch the model next."""
        return stand.over is not None and monotonic() - stand.over < LINGER_S

    def _drop(self, stand: Stand) -> None:
        del self._stands[stand.number]
        self._told[stand.number] = stand.hub.polls.told()
        while len(self._told) > TOLD_KEPT:
            del self._told[next(iter(self._told))]
        self._at = {k: at for k, at in self._at.items() if at != stand.number}
        stand.held.close()

    def _first(self, holds: Callable[[Stand], bool]) -> Stand | None:
        return next((stand for stand in self._all() if holds(stand)), None)

    def _all(self) -> list[Stand]:
        with self._lock:
            return list(self._stands.values())

    @property
    def busy(self) -> bool:
        """Whether there may be clients to move."""
        with self._lock:
            return len(self._live()) > 1 or any(stand.untold() for stand in self._stands.values())

    @staticmethod
    def _wake(app: FleetApp, clients: Iterable[int] | None = None) -> None:
        app.hub.shared.wake(app.hub.presence.everyone() if clients is None else clients)
