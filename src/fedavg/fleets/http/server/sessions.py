"""The secure-aggregation session of the attempt under way: passes on its messages and closes its phases in time."""

from time import monotonic
from typing import TYPE_CHECKING

from fedavg.fleets.http.server.collecting import Collecting
from fedavg.fleets.http.server.conduct import Conduct
from fedavg.fleets.http.server.intake import Intake
from fedavg.fleets.http.server.metrics import Updates
from fedavg.fleets.http.server.presence import Presence
from fedavg.fleets.http.server.rounds import OpenRound, Receipt, RoundPhase
from fedavg.fleets.http.server.shared import Shared

if TYPE_CHECKING:
    from fedavg.fleets.http.server.secure import SecureRound
    from fedavg.secagg import Aggregate, Encoding


class Sessions:
    """Thread-safe; every method takes the lock by itself."""

    def __init__(
        self,
        shared: Shared,
        presence: Presence,
        conduct: Conduct,
        collecting: Collecting,
        intake: Intake,
        updates: Updates,
    ) -> None:
        self._shared, self._presence, self._conduct = shared, presence, conduct
        self._collecting, self._intake, self._updates = collecting, intake, updates

    def _current(self) -> "tuple[OpenRound, SecureRound]":
        current = self._collecting.current
        assert current
        assert current.session
        return current.round, current.session

    @property
    def _under_way(self) -> bool:
        current = self._collecting.current
        return current is not None and current.session is not None

    # Called by the server loop

    def mask(self) -> bool:
        """Carry the session under way up to its last phase, which clients do not learn of yet.

        False if the server has to stop or too many clients have failed.
        """
        with self._shared.changed:
            round, session = self._current()
            while not session.last_phase:
                if not self._phase_over(round, session):
                    return False
                session.advance()
                self._shared.wake(session.inbox)
        return True

    def unmask(self) -> "Aggregate | None":
        """Have clients open the sum of the session under way; None if the server has to stop or too many failed."""
        with self._shared.changed:
            round, session = self._current()
            session.begin_last_phase()
            round.deadline = session.last_deadline
            self._shared.wake(session.inbox)
            ended = self._phase_over(round, session)
            self._presence.opened |= session.session.opened_by
            if not ended:
                return None
            round.phase = RoundPhase.COMMITTING  # nothing more is accepted from here on
        aggregate = session.finish()  # takes seconds, so outside the lock
        with self._shared.changed:
            self._conduct.strike(session.session.liars, monotonic(), guilty=True)
            round.accepted = set(aggregate.survivors)
            self._updates.accepted += len(aggregate.survivors)
        return aggregate

    def _phase_over(self, round: OpenRound, session: "SecureRound") -> bool:
        """Wait for the end of the session's phase; False if the server has to stop or the round is abandoned."""
        while not self._shared.stopping and round.phase is not RoundPhase.ABANDONED:
            if session.over(round.failed):
                return True
            self._shared.changed.wait(max(0.0, min(session.deadline - monotonic(), 1.0)) or 0.1)
        return False

    def over(self) -> None:
        """Put to rest the clients that left the session or were silent in it."""
        with self._shared.changed:
            if self._shared.stopping or not self._under_way:
                return
            round, session = self._current()
            excused = self._presence.revoked | self._presence.opened | self._conduct.excused
            self._conduct.strike((session.silent | round.failed) - excused, monotonic())

    def discard(self) -> list[int]:
        """The session's sum is impossible for its clients: nobody counts, and some clients are put to rest."""
        with self._shared.changed:
            round, _ = self._current()
            survivors = [k for k in round.accepted if isinstance(k, int)]
            round.accepted = set()
            return self._conduct.suspect(survivors, monotonic())

    @property
    def encoding(self) -> "Encoding":
        """How updates are encoded in the ring of the session under way."""
        return self._current()[1].session.terms.encoding

    def bytes_sent(self) -> tuple[list[int], int]:
        """The bytes that each client has sent in the session, and the bytes sent to all of them."""
        with self._shared.changed:
            _, session = self._current()
            return list(session.bytes_up.values()), session.bytes_down

    # Called for clients

    def judge(self, k: int, round: int, attempt: int) -> Receipt:
        """What would become of a client's next message; asked before it is read."""
        with self._shared.changed:
            verdict = self._intake.judge(k, round, attempt)
            if verdict is Receipt.ACCEPTED and not (self._under_way and self._current()[1].waits_for(k)):
                return Receipt.WRONG_ROUND
            return verdict

    def message(self, k: int, round: int, attempt: int) -> bytes | None:
        """The session message that waits for a client."""
        with self._shared.changed:
            if not self._under_way:
                return None
            current, session = self._current()
            return session.inbox.get(k) if current.judge(k, round, attempt) is Receipt.ACCEPTED else None

    def receive(self, k: int, round: int, attempt: int, body: bytes | memoryview) -> Receipt:
        """Take a client's message in the session; raises SecAggError if it is refused."""
        with self._shared.changed:
            if not self._under_way:
                return Receipt.WRONG_ROUND
            verdict = self._intake.judge(k, round, attempt)
            if verdict is Receipt.ACCEPTED:
                current, session = self._current()
                session.receive(k, body)
                if session.over(current.failed):
                    self._shared.changed.notify_all()
            return verdict

    def complain(self, by: int, of: int, number: int, attempt: int) -> bool:
        """A client has left the session because of another; true if that one is now shut out for it."""
        with self._shared.changed:
            if not self._under_way:
                return False
            round, session = self._current()
            if (round.round, round.attempt) != (number, attempt) or by not in round.invited:
                return False
            witnesses = session.session.terms.topology.degree
            return of in round.invited and self._conduct.complain(by, of, witnesses, monotonic())
