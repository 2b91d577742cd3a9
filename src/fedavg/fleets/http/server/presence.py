"""Which clients are enrolled, and which of them are there now and may be invited. It knows nothing of rounds."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from time import monotonic
from typing import Final, NamedTuple

import numpy as np

from fedavg.fleets.http.server.conduct import Conduct
from fedavg.fleets.http.server.shared import Shared
from fedavg.fleets.http.server.store import ClientRow, allows

#: Seconds for which a client counts as present after a request: longer than a held poll and the pause after it.
PRESENT_S: Final = 90.0
#: Polls that are held open at a time; any more are answered at once.
HELD: Final = 12_000


class Word(NamedTuple):
    """When a client was last heard from, and whether it was there for work."""

    said: float
    there: bool


@dataclass
class Turn:
    """Whether a run may begin a round now. A single run always may; of several, the one that was given a turn."""

    several: bool = False
    given: bool = False

    @property
    def mine(self) -> bool:
        return self.given or not self.several


class Presence:
    """Thread-safe; every method takes the lock by itself."""

    def __init__(self, shared: Shared, conduct: Conduct) -> None:
        self._shared, self._conduct = shared, conduct
        self._clients: dict[int, ClientRow] = {}
        self._seen: dict[int, float] = {}
        self._held: Counter[int] = Counter()
        self._held_in_all = 0
        #: When clients said that they are not eligible; passed on to other replicas.
        self._away: dict[int, float] = {}
        #: What other replicas heard from clients: by replica, when each client was there, or said that it was not.
        self._elsewhere: dict[int, dict[int, Word]] = {}
        self.turn = Turn()
        #: Whether enough clients were there and a round is about to be opened.
        self.beginning = False
        #: How many clients the server loop waits for; None while it does not wait.
        self.lacking: int | None = None
        #: Only clients whose owners allow this task take part; if None, all do.
        self.task: str | None = None
        self.revoked: set[int] = set()
        #: Clients that have opened a sum of the round under way: they open no other, so they are not invited again.
        self.opened: set[int] = set()

    def note(self, rows: Sequence[ClientRow]) -> None:
        """Take over client rows from the database; a revoked client is no longer there."""
        with self._shared.changed:
            for row in rows:
                self._clients[row.k] = row
                if row.revoked:
                    self.revoked.add(row.k)
                    self._seen.pop(row.k, None)
            self._shared.changed.notify_all()

    def client(self, k: int) -> ClientRow | None:
        return self._clients.get(k)

    @property
    def enrolled(self) -> int:
        """The number of clients that may take part."""
        if self.task is None:
            return len(self._clients)
        with self._shared.changed:
            return sum(self._allowed(row) for row in self._clients.values())

    def _allowed(self, row: ClientRow) -> bool:
        return self.task is None or allows(row, self.task)

    def everyone(self) -> list[int]:
        """The numbers of all enrolled clients."""
        with self._shared.changed:
            return list(self._clients)

    def examples(self, clients: Iterable[int]) -> list[int]:
        """n_k, as each client said in its last poll."""
        with self._shared.changed:
            return [self._clients[k].examples for k in clients]

    def median_examples(self) -> int | None:
        """The median n_k of the clients that may take part; None if there are none."""
        with self._shared.changed:
            rows = [row for row in self._clients.values() if self._allowed(row)]
            sizes = [row.examples for row in rows if row.examples and row.approved and not row.revoked]
            return median_low(sizes) if sizes else None

    # Clients that ask for work

    def see(self, k: int, eligible: bool) -> None:
        """Note that a client asked for work; if it is not eligible now, it does not count as there."""
        with self._shared.changed:
            new = eligible and k not in self._seen
            if eligible:
                self._seen[k] = monotonic()
                self._away.pop(k, None)
            else:
                self._seen.pop(k, None)
                self._away[k] = monotonic()
            if new:
                self._shared.changed.notify_all()

    def hold(self, k: int) -> bool:
        """May this poll be held open? If so, the caller must `release` it."""
        with self._shared.changed:
            if self._held_in_all >= HELD:
                return False
            self._held[k] += 1
            self._held_in_all += 1
            return True

    def release(self, k: int) -> None:
        with self._shared.changed:
            self._held[k] -= 1
            self._held_in_all -= 1
            if not self._held[k]:
                del self._held[k]
            if k in self._seen:
                self._seen[k] = monotonic()

    @property
    def seen(self) -> int:
        """How many clients asked for work and have not said since then that they are not eligible."""
        return len(self._seen)

    # Clients that may be invited

    def sizes(self, opened: bool = False) -> np.ndarray:
        """n_k of every client that is there now, zero for the others.

        Clients that have opened a sum of this round are included only with `opened`: they cannot train again in this
        round, but may judge.
        """
        with self._shared.changed:
            sizes = np.zeros(max(self._clients, default=-1) + 1, np.int64)
            now = monotonic()
            for k, seen in self._last_seen().items():
                there = (seen >= now - PRESENT_S or self._held[k]) and (opened or k not in self.opened)
                if there and self._may_come(k) and not self._conduct.rests(k, now):
                    sizes[k] = self._clients[k].examples
            return sizes

    def there(self) -> set[int]:
        """The clients that are there now and may be invited."""
        return {int(k) for k in np.flatnonzero(self.sizes())}

    def away(self) -> list[int]:
        """The clients that said lately that they are not there for work."""
        with self._shared.changed:
            return [k for k, said in self._away.items() if said >= monotonic() - PRESENT_S]

    def _may_come(self, k: int) -> bool:
        """Whether a client may be invited; false if only another replica knows it so far."""
        row = self._clients.get(k)
        return row is not None and row.approved and k not in self.revoked and self._allowed(row)

    def _last_seen(self) -> Mapping[int, float]:
        """When each client was there, by the latest news from any replica."""
        if not self._elsewhere:
            return self._seen
        last = {k: Word(seen, True) for k, seen in self._seen.items()}
        last |= {k: Word(said, False) for k, said in self._away.items()}
        for words in self._elsewhere.values():
            for k, word in words.items():
                last[k] = max(last.get(k, word), word)
        return {k: word.said for k, word in last.items() if word.there}

    def states(self) -> dict[int, str]:
        """The state of each client now, as one word."""
        with self._shared.changed:
            there, now = self._heard_of(), monotonic()
            return {k: self._state(row, k in there, now) for k, row in self._clients.items()}

    def _state(self, row: ClientRow, there: bool, now: float) -> str:
        if row.revoked or row.k in self.revoked:
            return "revoked"
        if not row.approved:
            return "waiting"  # for the operator's approval
        if self._conduct.rests(row.k, now):
            return "resting"
        return "there" if there else "away"

    def _heard_of(self) -> set[int]:
        """The clients heard from lately, whether or not they may be invited."""
        since = monotonic() - PRESENT_S
        return {k for k, seen in self._last_seen().items() if seen >= since or self._held[k]}

    # News between replicas

    def words(self) -> list[tuple[int, float, bool]]:
        """What was heard from clients here: who, how many seconds ago, and whether it was there."""
        with self._shared.changed:
            now = monotonic()
            there = [(k, 0.0 if self._held[k] else now - seen, True) for k, seen in self._seen.items()]
            return there + [(k, now - said, False) for k, said in self._away.items() if said >= now - PRESENT_S]

    def hear(self, replica: int, words: Iterable[tuple[int, float, bool]]) -> None:
        """Take over what another replica has heard."""
        with self._shared.changed:
            now = monotonic()
            self._elsewhere[replica] = {k: Word(now - ago, there) for k, ago, there in words}
            self._shared.changed.notify_all()

    def forget(self, others: Container[int]) -> None:
        """Forget the news of replicas that are gone: only `others` are still there."""
        with self._shared.changed:
            self._elsewhere = {replica: words for replica, words in self._elsewhere.items() if replica in others}

    def shut_out(self, population: int) -> int:
        """How many of a population cannot come: revoked, at rest, or bound by a sum they have opened. Clients enrolled
        beyond the population make up for them."""
        with self._shared.changed:
            out = self.revoked | self.opened | self._conduct.resting(monotonic())
            gone = sum(k in self._clients and self._allowed(self._clients[k]) for k in out)
            return max(0, gone - max(0, self.enrolled - population))

    @property
    def resting(self) -> int:
        """How many clients are at rest."""
        with self._shared.changed:
            return len(self._conduct.resting(monotonic()))

    def call_back(self, count: int) -> list[int]:
        """End the rest of some clients that are there and were only silent."""
        with self._shared.changed:
            return self._conduct.call_back(self._last_seen(), count, monotonic())

    def wait(self, wanted: Callable[[], int], timeout: float) -> int:
        """Wait until enough clients with examples are there, or for `timeout` seconds; returns how many there are.

        If there are enough, it is also the run's turn, and this call uses the turn up.
        """
        until = monotonic() + timeout
        with self._shared.changed:
            while True:
                needed = wanted()
                there, left = self._present(needed), until - monotonic()
                enough = there >= needed
                if self._shared.over or (enough and self.turn.mine) or (left <= 0 and not enough):
                    break
                self.lacking = needed
                self._shared.changed.wait(1.0 if enough else min(left, 1.0))
            if enough:
                self.lacking, self.turn.given, self.beginning = None, False, True
            return there

    def _present(self, needed: int) -> int:
        # Runs for every new arrival: the exact count, which looks at all clients, is taken only if it may be enough.
        seen = len(self._last_seen())
        return int(np.count_nonzero(self.sizes())) if seen >= needed else seen

    def status(self) -> dict[str, object]:
        with self._shared.changed:
            return {
                "clients": len(self._clients),
                "revoked": len(self.revoked),
                "resting": self.resting,
                "present": int(np.count_nonzero(self.sizes())),
                "held_polls": self._held_in_all,
            }
