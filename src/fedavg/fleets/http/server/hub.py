"""What the request handlers and the server loop share, by its parts, and the few steps that concern several of them.

Handlers run in the event loop and in its threads; the server loop runs in the main thread. One lock guards all parts
(`Shared.changed`) and is never held for long: the event loop waits for it. A second one (`Collecting.adding`) is for
whoever adds to the sum or closes the round. Whoever needs both takes the second one first.
"""

from collections.abc import Sequence

from fedavg.fleets.http.server.claims import Alone, Claims
from fedavg.fleets.http.server.collecting import Collecting
from fedavg.fleets.http.server.conduct import Conduct
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.history import History
from fedavg.fleets.http.server.intake import Intake
from fedavg.fleets.http.server.metrics import Updates
from fedavg.fleets.http.server.offered import OfferedModels
from fedavg.fleets.http.server.polls import Polls
from fedavg.fleets.http.server.presence import Presence
from fedavg.fleets.http.server.sessions import Sessions
from fedavg.fleets.http.server.shared import Shared
from fedavg.fleets.http.server.store import ClientRow


class Hub:
    """One of each part, all under one lock. `rest_s` is how long a client is not invited after its first strike."""

    def __init__(self, guards: Guards, rest_s: float = 60.0, claims: Claims | None = None) -> None:
        self.guards = guards
        claims = claims or Alone()
        self.shared = Shared()
        self.updates = Updates()
        conduct = Conduct(rest_s)
        self.presence = Presence(self.shared, conduct)
        self.models = OfferedModels(self.shared)
        self.history = History(self.shared)
        self.collecting = Collecting(guards, self.shared, self.presence, conduct, claims)
        self.intake = Intake(guards, self.shared, self.presence, self.collecting, self.updates, claims)
        self.sessions = Sessions(self.shared, self.presence, conduct, self.collecting, self.intake, self.updates)
        self.polls = Polls(self.shared, self.presence, self.collecting, self.intake, self.history)

    def know(self, rows: Sequence[ClientRow]) -> None:
        """Clients as the database has them; one that is revoked is shut out at once."""
        self.presence.note(rows)
        if revoked := [row.k for row in rows if row.revoked]:
            self.collecting.lose(revoked)
            self.shared.wake(revoked)

    def reported(self, k: int, reason: str) -> None:
        """A client has said why it does not take part."""
        with self.shared.changed:
            self.updates.reports[reason] += 1
            if reason == "round-opened":
                self.presence.opened.add(k)

    def committed(self, round: int) -> None:
        """The round is on the disk: clients may let go of their updates."""
        with self.shared.changed:
            self.history.commit(round, self.collecting.done())

    def stop(self) -> None:
        with self.shared.changed:
            self.shared.stopping = True
            self.shared.changed.notify_all()
        self.shared.wake(self.presence.everyone())

    def status(self) -> dict[str, object]:
        """What operators ask."""
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
