"""What the request handlers and the server loop share: its parts, and the few steps that concern several of them.

Handlers run in the event loop and in its threads; the server loop runs in the main thread. One lock guards all parts
(`Shared.changed`) and is never held for long: the event loop waits for it. Code that adds to the sum or closes the
round takes a second lock (`Collecting.adding`). Code that needs both takes the second one first.
"""

import logging
from collections.abc import Sequence
from time import monotonic
from typing import Final

from fedavg.fleets.http.server.claims import Alone, Claims
from fedavg.fleets.http.server.collecting import NOT_WAITED_FOR, REVOKED, Collecting
from fedavg.fleets.http.server.conduct import Conduct
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.history import History
from fedavg.fleets.http.server.intake import Intake
from fedavg.fleets.http.server.metrics import Progress, Updates
from fedavg.fleets.http.server.offered import OfferedModels
from fedavg.fleets.http.server.polls import Polls
from fedavg.fleets.http.server.presence import Presence
from fedavg.fleets.http.server.sessions import Sessions
from fedavg.fleets.http.server.shared import Shared
from fedavg.fleets.http.server.sightings import Sightings
from fedavg.fleets.http.server.store import ClientRow

log = logging.getLogger("fedavg.fleet")

#: Seconds from the start of an abandoned attempt to the next attempt: after the first one, and at most.
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 60.0
#: Reasons that do not count against a client: it was not needed, or is gone for good.
_NO_FAILURE: Final = (NOT_WAITED_FOR, REVOKED)


def pause_after(failures: int, took_s: float, deadline_s: float) -> float:
    """Seconds until the next attempt, after `failures` abandoned in a row, the last of which took `took_s`."""
    apart = min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 20), LONGEST_PAUSE_S, deadline_s)
    return max(0.0, apart - took_s)


class Hub:
    """One of each part, all under one lock. `rest_s` is how long a client is not invited after its first strike."""

    def __init__(
        self, guards: Guards, rest_s: float = 60.0, claims: Claims | None = None, sightings: Sightings | None = None
    ) -> None:
        self.guards, self.sightings = guards, sightings or Sightings()
        claims = claims or Alone()
        self.shared = Shared()
        self.updates, self.progress = Updates(), Progress()
        conduct = Conduct(rest_s)
        self.presence = Presence(self.shared, conduct)
        self.models = OfferedModels(self.shared)
        self.history = History(self.shared)
        self.collecting = Collecting(guards, self.shared, self.presence, conduct, claims)
        self.intake = Intake(guards, self.shared, self.presence, self.collecting, self.updates, claims)
        self.sessions = Sessions(self.shared, self.presence, conduct, self.collecting, self.intake, self.updates)
        self.polls = Polls(self.shared, self.presence, self.collecting, self.intake, self.history)

    def know(self, rows: Sequence[ClientRow]) -> None:
        """Take over client rows from the database; a revoked client is shut out at once."""
        self.presence.note(rows)
        if revoked := [row.k for row in rows if row.revoked]:
            self.collecting.lose(revoked)
            self.shared.wake(revoked)

    def reported(self, k: int, reason: str) -> None:
        """Record why a client says that it does not take part."""
        with self.shared.changed:
            self.updates.reports[reason] += 1
            if reason == "round-opened":
                self.presence.opened.add(k)

    def committed(self, round: int) -> None:
        """The round is on disk: clients may delete their updates."""
        with self.shared.changed:
            counted = self.collecting.done()
            self.history.commit(round, counted)
        self.sightings.counted(counted.clients if counted else ())

    def note_missing(self) -> None:
        """After an attempt: log each client that was asked and is not in its sum, where they are known."""
        if self.guards.anonymous or self.shared.over:
            return
        round, attempt, missing = self.collecting.not_in_the_sum()
        for reason, clients in missing.items():
            self.progress.missing[reason] += len(clients)
            failed = reason not in _NO_FAILURE
            if failed:
                self.sightings.failed(clients, reason)
            for k in clients:
                level = logging.WARNING if failed else logging.INFO
                log.log(
                    level, "client missing", extra={"client": k, "round": round, "attempt": attempt, "reason": reason}
                )

    def rest_after_failure(self) -> None:
        """Delay the next attempt after an abandoned one: longer for each failure in a row.

        An attempt that took its whole deadline was pause enough: a crowd of silent clients must not hold up the others.
        """
        failures, current = self.progress.gave_up(), self.collecting.current
        if current is None:
            return
        pause_s = pause_after(failures, monotonic() - current.began, current.round.deadline - current.began)
        log.info("pausing before another attempt", extra={"failures": failures, "seconds": round(pause_s, 2)})
        self.shared.pause(pause_s)

    def stop(self) -> None:
        with self.shared.changed:
            self.shared.stopping = True
            self.shared.changed.notify_all()
        self.shared.wake(self.presence.everyone())

    def status(self) -> dict[str, object]:
        """The state that operators see."""
        with self.shared.changed:
            return {
                "committed": self.history.last,
                "done": self.polls.finished,
                **self.presence.status(),
                "round": self.collecting.status(),
                "updates_accepted": self.updates.accepted,
                "updates_capped": self.updates.capped,
                "updates_refused": dict(self.updates.refused),
                "reports": dict(self.updates.reports),
            }
