"""The answer to a client that polls: work, the next step of a session, wait, or the run is over."""

import secrets
from typing import Final

from fedavg.fleets.http.protocol.messages import DoneAnswer, MaskAnswer, PollAnswer, WaitAnswer
from fedavg.fleets.http.server.collecting import Collecting
from fedavg.fleets.http.server.history import History
from fedavg.fleets.http.server.intake import Intake
from fedavg.fleets.http.server.presence import Presence
from fedavg.fleets.http.server.shared import Shared

#: Polls per second that the server aims at; with more clients than that, each is told to come back later.
POLL_RATE: Final = 500.0


class Polls:
    """Thread-safe; every method takes the lock by itself."""

    def __init__(
        self, shared: Shared, presence: Presence, collecting: Collecting, intake: Intake, history: History
    ) -> None:
        self._shared, self._presence, self._collecting = shared, presence, collecting
        self._intake, self._history = intake, history
        self._done: DoneAnswer | None = None
        self._told: set[int] = set()

    def answer(self, k: int) -> PollAnswer | None:
        """Work for the client, or that the run is over; None if there is nothing for it now."""
        with self._shared.changed:
            if self._done:
                known = k in self._told
                self._told.add(k)
                return None if known and self._done.more else self._done
            current = self._collecting.current
            if self._shared.stopping or not current or not current.round.wants(k):
                return None
            session = current.session
            if session and not session.waits_for(k):
                return None
            if session and not session.first_phase:
                round, attempt = current.round.round, current.round.attempt
                return MaskAnswer(round=round, attempt=attempt, session=session.name, step=session.step)
            return self._intake.offer(k)

    def wait_answer(self, held: bool) -> WaitAnswer:
        """When to come back, spread out so that clients do not all come at once."""
        with self._shared.changed:
            pause = 0.5 if held else max(1.0, self._presence.seen / POLL_RATE)
            pause *= 0.5 + secrets.randbelow(1000) / 1000
            return WaitAnswer(retry_after_s=pause, committed=self._history.last, counted=None)

    def finish(self, done: DoneAnswer) -> None:
        """End the run: every client is told so when it polls."""
        with self._shared.changed:
            self._done = done
        self._shared.wake(self._presence.everyone())

    @property
    def finished(self) -> bool:
        return self._done is not None

    def knows(self, k: int) -> None:
        """Another replica has told this client that the run is over."""
        with self._shared.changed:
            self._told.add(k)

    def told(self) -> set[int]:
        """The clients that know that the run is over."""
        with self._shared.changed:
            return set(self._told)

    def all_told(self) -> bool:
        """Does every client know that the run is over? A server that was just restarted has seen none of them yet."""
        with self._shared.changed:
            return self._told.issuperset(set(self._presence.everyone()) - self._presence.revoked)
