"""The attempt under way as the server loop sees it: the loop opens it, waits until it is over, takes the result."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Final

from torch import Tensor

from fedavg.fleets.http.protocol.messages import JUDGING
from fedavg.fleets.http.server.claims import Claims
from fedavg.fleets.http.server.conduct import Conduct, outstanding
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.presence import Presence
from fedavg.fleets.http.server.rounds import OpenRound, RoundPhase
from fedavg.fleets.http.server.shared import Shared
from fedavg.fleets.http.server.store import Counted
from fedavg.fleets.http.server.underway import Collected, Group, Received, UnderWay
from fedavg.sums import to_float
from fedavg.types import Update

if TYPE_CHECKING:
    from fedavg.fleets.http.server.secure import SecureRound


#: Why a client is not in a sum, where it neither failed nor was refused.
LATE: Final = "late"
NOT_WAITED_FOR: Final = "not waited for"
REVOKED: Final = "revoked"


class Collecting:
    """Thread-safe; every method takes the locks by itself."""

    def __init__(self, guards: Guards, shared: Shared, presence: Presence, conduct: Conduct, claims: Claims) -> None:
        self._guards, self._shared, self._presence, self._conduct = guards, shared, presence, conduct
        self._claims = claims
        #: Taken before the shared lock by any code that may end the collecting, and held while an update is added, so
        #: that a closed round's sum is complete.
        self.adding = Lock()
        self.current: UnderWay | None = None
        #: The attempt that is set aside, with what it has collected, while its model is judged.
        self.waiting: UnderWay | None = None

    def weight_cap(self) -> float:
        """The largest weight of an update, for a round that begins now."""
        median = self._presence.median_examples()
        return inf if median is None else self._guards.times_median * median

    def open(
        self,
        round: OpenRound,
        groups: Iterable[Group],
        session: "SecureRound | None" = None,
        cap: float | None = None,
    ) -> None:
        """Begin to collect: updates, or the messages of a session of secure aggregation.

        An attempt that is already under way stays as it is: other replicas may rely on what this server has collected.
        """
        with self._shared.changed:
            self._presence.beginning = False
            if self.current and not session and self.current.round.continues(round):
                self.current.round.deadline = round.deadline
                self._shared.wake(round.invited)
                return
            cap = self.weight_cap() if cap is None else cap
            collected = [Collected(group) for group in groups]
            of_client = {k: each for each in collected for k in each.group.clients}
            self.current = UnderWay(round, collected, of_client, session, cap)
            self._conduct.new_attempt()
        self._shared.wake(round.invited)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Collect something else in the meantime; afterwards the earlier round is restored."""
        with self._shared.changed:
            opened = set(self._presence.opened)
        self.put_aside()
        try:
            yield
        finally:
            self.take_back()
            with self._shared.changed:
                self._presence.opened = opened

    def put_aside(self) -> None:
        """Set the attempt under way aside; one that is aside already stays there."""
        with self.adding, self._shared.changed:
            self.waiting, self.current = self.waiting or self.current, None

    def take_back(self) -> None:
        """Resume the attempt that was set aside; if there is none, nothing is under way."""
        with self.adding, self._shared.changed:
            self.current, self.waiting = self.waiting, None

    def drop(self) -> None:
        """Stop collecting."""
        with self.adding, self._shared.changed:
            self.current = self.waiting = None

    def wait(self) -> RoundPhase:
        """Wait until the round under way is full, over or abandoned, or the server has to stop."""
        assert self.current
        round = self.current.round
        while True:
            with self.adding, self._shared.changed:
                round.tick(monotonic())
            with self._shared.changed:
                if round.phase is not RoundPhase.COLLECTING or self._shared.over:
                    self._strike_absent(round)
                    return round.phase
                self._shared.changed.wait(max(0.0, min(round.deadline - monotonic(), 1.0)))

    def _strike_absent(self, round: OpenRound) -> None:
        """Put to rest the clients that failed or did not answer by the deadline."""
        if self._shared.over or self._guards.anonymous:
            return
        now, asked = monotonic(), set(round.invited) - self._presence.revoked
        silent = asked - round.accepted if now >= round.deadline else set()
        self._conduct.strike(silent | (asked & round.failed), now)

    def fail(self, k: int, round: int, attempt: int, why: str) -> bool:
        """Record that a client will not send its update; false if it was not asked for one."""
        with self.adding:
            current = self.current.round if self.current else None
            if not current or (current.round, current.attempt) != (round, attempt) or k not in current.invited:
                return False
            assert self.current
            self._claims.fail(k, round, attempt, why)
            with self._shared.changed:
                self.current.why[k] = why
                current.fail(k, monotonic())
                self._shared.changed.notify_all()
            return True

    def keeps(self, k: int) -> bool:
        """Must this client stay? It is or will be invited, or may be in a sum that is not committed yet."""
        with self._shared.changed:
            if self.current is None or self._presence.beginning:
                return self._presence.beginning
            round = self.current.round
            if round.phase is RoundPhase.COMMITTING or round.attempt >= JUDGING:
                return True
            return round.phase is RoundPhase.COLLECTING and k in round.invited and k not in round.failed

    def awaited(self) -> list[int]:
        """The invited clients that have not answered."""
        with self._shared.changed:
            round = self.current.round if self.current else None
            return [k for k in round.invited if round.wants(k)] if round else []

    def lose(self, clients: Iterable[int]) -> None:
        """Stop waiting for these clients."""
        with self.adding, self._shared.changed:
            for k in clients:
                if self.current:
                    self.current.round.fail(k, monotonic())
            self._shared.changed.notify_all()

    # Results

    def abandoned_because(self) -> str:
        with self._shared.changed:
            return self.current.round.reason if self.current else ""

    def totals(self) -> list[tuple[Tensor, dict[int, Update], list[Received]]]:
        """For each group of a closed round: the sum, float64, or the single updates; and what was received."""
        with self._shared.changed:
            assert self.current
            assert self.current.round.phase is RoundPhase.COMMITTING
            return [(to_float(each.ring), each.in_order(), list(each.received)) for each in self.current.collected]

    def missing(self) -> dict[str, list[int]]:
        """The clients that were invited and are not in the sum, by reason."""
        found: dict[str, list[int]] = {}
        with self._shared.changed:
            assert self.current
            round, why = self.current.round, self.current.why
            silent = LATE if monotonic() >= round.deadline else NOT_WAITED_FOR
            for k in sorted(set(round.invited) - round.accepted):
                found.setdefault(REVOKED if k in self._presence.revoked else why.get(k, silent), []).append(k)
        return found

    def not_in_the_sum(self) -> tuple[int, int, dict[str, list[int]]]:
        """The round and attempt that ended, and the clients that are not in its sum, by reason."""
        with self._shared.changed:
            assert self.current
            return self.current.round.round, self.current.round.attempt, self.missing()

    def counted(self) -> list[int]:
        """The clients whose updates are in the sum, where they are known."""
        with self._shared.changed:
            accepted = self.current.round.accepted if self.current else ()
            return sorted(source for source in accepted if isinstance(source, int))

    def spoiled(self, reason: str) -> list[int]:
        """The attempt's result cannot be used: put to rest the clients whose updates are unusually large."""
        with self._shared.changed:
            if self.current is None:
                return []
            culprits = outstanding({k: size for each in self.current.collected for k, size in each.sizes.items()})
            self._conduct.strike(culprits, monotonic(), guilty=True)
            self.current.round.phase, self.current.round.reason = RoundPhase.ABANDONED, reason
            return culprits

    def done(self) -> Counted | None:
        """The round is on disk; returns the clients that counted in it, if this server collected it."""
        with self._shared.changed:
            self._presence.opened.clear()
            if self.current is None:
                return None
            counted = self.counted()
            self._conduct.clear(counted)
            self.current.round.phase = RoundPhase.DONE
            for each in self.current.collected:
                each.singles.clear()  # nothing of a single update outlives its round
            return Counted(self.current.round.attempt, frozenset(counted))

    def status(self) -> dict[str, object] | None:
        with self._shared.changed:
            if self.current is None:
                return None
            current = self.current.round
            return {
                "round": current.round,
                "attempt": current.attempt,
                "phase": str(current.phase),
                "invited": len(current.invited),
                "accepted": len(current.accepted),
                "failed": len(current.failed),
                "goal": current.goal,
                "seconds_left": round(max(0.0, current.deadline - monotonic()), 1),
            }
