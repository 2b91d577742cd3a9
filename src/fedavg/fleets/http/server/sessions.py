"""The session of secure aggregation of the attempt under way: its messages are carried, its phases closed in time."""

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

    # What the server loop does

    def mask(self) -> bool:
        """Carry the session under way up to its last phase, which nobody hears of yet.

        False if the server is to stop or too many clients have failed.
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
        """Have the sum of the session under way opened; None if the server is to stop or too many have failed."""
        with self._shared.changed:
            round, session = self._current()
            session.begin_last_phase()
            round.deadline = session.last_deadline
            self._shared.wake(session.inbox)
            ended = self._phase_over(round, session)
            self._presence.opened |= session.session.opened_by
            if not ended:
                return None
            round.phase = RoundPhase.COMMITTING  # nothing more is taken from here on
        aggregate = session.finish()  # seconds of work, outside of the lock
        with self._shared.changed:
            self._conduct.strike(session.session.liars, monotonic(), guilty=True)
            round.accepted = set(aggregate.survivors)
            self._updates.accepted += len(aggregate.survivors)
        return aggregate

    def _phase_over(self, round: OpenRound, session: "SecureRound") -> bool:
        """Wait for the end of the session's phase; False if there will be none."""
        while not self._shared.stopping and round.phase is not RoundPhase.ABANDONED:
            if session.over(round.failed):
                return True
            self._shared.changed.wait(max(0.0, min(session.deadline - monotonic(), 1.0)) or 0.1)
        return False

    def over(self) -> None:
        """Who left the session, or was silent in it, is not asked again for a while."""
        with self._shared.changed:
            if self._shared.stopping or not self._under_way:
                return
            round, session = self._current()
            excused = self._presence.revoked | self._presence.opened | self._conduct.excused
            self._conduct.strike((session.silent | round.failed) - excused, monotonic())

    def discard(self) -> list[int]:
        """The sum of the session is one that its clients cannot have: nobody counts, and some rest."""
        with self._shared.changed:
            round, _ = self._current()
            survivors = [k for k in round.accepted if isinstance(k, int)]
            round.accepted = set()
            return self._conduct.suspect(survivors, monotonic())

    @property
    def encoding(self) -> "Encoding":
        """How updates are written into the ring of the session under way."""
        return self._current()[1].session.terms.encoding

    def bytes_sent(self) -> tuple[list[int], int]:
        """Bytes that each client has sent in the session, and bytes that were sent to all of them."""
        with self._shared.changed:
            _, session = self._current()
            return list(session.bytes_up.values()), session.bytes_down

    # What clients ask and send

    def judge(self, k: int, round: int, attempt: int) -> Receipt:
        """What would become of a client's next message, before it is read."""
        with self._shared.changed:
            verdict = self._intake.judge(k, round, attempt)
            if verdict is Receipt.ACCEPTED and not (self._under_way and self._current()[1].waits_for(k)):
                return Receipt.WRONG_ROUND
            return verdict

    def message(self, k: int, round: int, attempt: int) -> bytes | None:
        """The message of the session that waits for a client."""
        with self._shared.changed:
            if not self._under_way:
                return None
            current, session = self._current()
            return session.inbox.get(k) if current.judge(k, round, attempt) is Receipt.ACCEPTED else None

    def receive(self, k: int, round: int, attempt: int, body: bytes | memoryview) -> Receipt:
        """A client's message in the session; SecAggError if it is refused."""
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
        """A client has left the session because of another; true if that one is shut out for it now."""
        with self._shared.changed:
            if not self._under_way:
                return False
            round, session = self._current()
            if (round.round, round.attempt) != (number, attempt) or by not in round.invited:
                return False
            witnesses = session.session.terms.topology.degree
            return of in round.invited and self._conduct.complain(by, of, witnesses, monotonic())
