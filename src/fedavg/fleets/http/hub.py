"""What the request handlers and the server loop share: who is there, the round under way, the sum so far.

One lock guards it all. Handlers run in the event loop and in its threads; the server loop runs in the main thread. An
update is decoded, added to the sum and forgotten: only the sum, the weight and the metrics are kept, and nothing of it
reaches the disk. After a crash the sum is gone, and the clients, who keep their updates until the round is committed,
are asked again.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from threading import Condition
from time import monotonic
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedavg.errors import Diverged
from fedavg.fleets.http.messages import DoneAnswer, Holding, PollAnswer, WaitAnswer, WorkOffer
from fedavg.fleets.http.rounds import Phase, Round, Verdict
from fedavg.fleets.http.store import ClientRow
from fedavg.fleets.http.wire import Expected, Reason, UpdateRefused, decode_update, max_frame_bytes
from fedavg.sums import ExactSum, to_float
from fedavg.types import Examples, FederatedData, Update

#: A client counts as present for so long after its last request: longer than a held poll and the pause after it.
PRESENT_S: Final = 90.0
#: Polls a second that the server aims at; with more clients than that, each is told to come back later.
POLL_RATE: Final = 500.0
#: Polls that are held open at a time; beyond, they are answered at once.
HELD: Final = 12_000


@dataclass(frozen=True)
class Guards:
    """Bounds on what a client may send, and whether updates come without a name."""

    max_weight: float = 1e6
    max_norm: float | None = None
    anonymous: bool = False


@dataclass(frozen=True)
class Received:
    """What is kept of an update once it is in the sum."""

    weight: float
    metrics: dict[str, float]
    bytes_up: int


class Hub:
    """Thread-safe; every public method takes the lock by itself."""

    def __init__(self, guards: Guards) -> None:
        self.guards = guards
        self._changed = Condition()
        self._clients: dict[int, ClientRow] = {}
        self._by_key: dict[bytes, int] = {}
        self._seen: dict[int, float] = {}
        self._held: Counter[int] = Counter()
        self._held_in_all = 0
        self._round: Round | None = None
        self._models: dict[str, bytes] = {}
        self._committed = 0
        self._done: DoneAnswer | None = None
        self._told: set[int] = set()
        self._stopping = False
        #: Wakes the held polls of some clients; set by the application once its event loop runs.
        self.wake: Callable[[Iterable[int]], None] = lambda _: None
        self.accepted = 0
        self.refused: Counter[str] = Counter()

    # Clients

    def know(self, rows: Iterable[ClientRow]) -> None:
        with self._changed:
            for row in rows:
                self._clients[row.k] = row
                self._by_key[row.key] = row.k
                if row.revoked:
                    self._seen.pop(row.k, None)
            self._changed.notify_all()

    def client(self, k: int) -> ClientRow | None:
        return self._clients.get(k)

    def see(self, k: int, eligible: bool) -> None:
        """A client has asked for work; one that is not eligible now is not counted as there."""
        with self._changed:
            new = eligible and k not in self._seen
            if eligible:
                self._seen[k] = monotonic()
            else:
                self._seen.pop(k, None)
            if new:
                self._changed.notify_all()

    def hold(self, k: int) -> bool:
        """May this poll be held open? Each that may is let go of by `release`."""
        with self._changed:
            if self._held_in_all >= HELD:
                return False
            self._held[k] += 1
            self._held_in_all += 1
            return True

    def release(self, k: int) -> None:
        with self._changed:
            self._held[k] -= 1
            self._held_in_all -= 1
            if not self._held[k]:
                del self._held[k]
            if k in self._seen:
                self._seen[k] = monotonic()

    def sizes(self) -> np.ndarray:
        """n_k of every client that is there now, zero for the others."""
        with self._changed:
            sizes = np.zeros(max(self._clients, default=-1) + 1, np.int64)
            oldest = monotonic() - PRESENT_S
            for k, seen in self._seen.items():
                if seen >= oldest or self._held[k]:
                    sizes[k] = self._clients[k].examples
            return sizes

    def wait_for_clients(self, needed: int, timeout: float) -> int:
        """Wait until so many clients with examples are there, or for so long; returns how many are."""
        until = monotonic() + timeout
        with self._changed:
            while (there := self._present(needed)) < needed and not self._stopping:
                if (left := until - monotonic()) <= 0:
                    break
                self._changed.wait(min(left, 1.0))
            return there

    def _present(self, needed: int) -> int:
        # Every newcomer asks this: the exact count, which looks at all, is taken only when it may be enough.
        return int(np.count_nonzero(self.sizes())) if len(self._seen) >= needed else len(self._seen)

    # The round

    def publish(self, weights: Tensor) -> str:
        """Offer a vector for download; returns its SHA-256. The one before stays for those who still fetch it."""
        data = weights.numpy().astype("<f4", copy=False).tobytes()
        digest = sha256(data).hexdigest()
        with self._changed:
            kept = list(self._models.items())[-1:]
            self._models = dict([*kept, (digest, data)])
        return digest

    def model(self, digest: str) -> bytes | None:
        return self._models.get(digest)

    def open(self, round: Round, offer: WorkOffer, expected: Expected) -> None:
        """Begin to collect."""
        with self._changed:
            self._offer, self._expected = offer, expected
            self._ring = torch.zeros(expected.numbers, dtype=torch.int64)
            self._sum = ExactSum(self._ring)
            self._received: list[Received] = []
            self._tokens: set[bytes] = set()
            self._given: set[int] = set()
            self._round = round
        self.wake(round.invited)

    def collect(self) -> Phase:
        """Wait until the round under way is full, over or abandoned, or the server is to stop."""
        with self._changed:
            assert self._round
            while self._round.phase is Phase.COLLECTING and not self._stopping:
                self._changed.wait(max(0.0, min(self._round.deadline - monotonic(), 1.0)))
                self._round.tick(monotonic())
            return self._round.phase

    def abandoned_because(self) -> str:
        with self._changed:
            return self._round.reason if self._round else ""

    def pause(self, seconds: float) -> None:
        """Sleep, unless the server is to stop."""
        until = monotonic() + seconds
        with self._changed:
            while not self._stopping and (left := until - monotonic()) > 0:
                self._changed.wait(left)

    def total(self) -> tuple[Tensor, list[Received]]:
        """The sum of a round that is closed, float64, and what was received."""
        with self._changed:
            assert self._round
            assert self._round.phase is Phase.COMMITTING
            return to_float(self._ring), list(self._received)

    def counted(self) -> list[int]:
        """The clients whose updates are in the sum, where they are known."""
        with self._changed:
            return sorted(source for source in (self._round.accepted if self._round else ()) if isinstance(source, int))

    def committed(self, round: int) -> None:
        """The round is on the disk: clients may let go of their updates."""
        with self._changed:
            self._committed = round
            if self._round:
                self._round.phase = Phase.DONE

    def finish(self, done: DoneAnswer) -> None:
        with self._changed:
            self._done = done
        self.wake(list(self._clients))

    def all_told(self) -> bool:
        """Does every client know that the run is over? A server that was just restarted has seen none of them yet."""
        with self._changed:
            return self._told.issuperset(k for k, row in self._clients.items() if not row.revoked)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.wake(list(self._clients))

    @property
    def stopping(self) -> bool:
        return self._stopping

    # What clients ask and send

    def answer(self, k: int, holding: Holding | None) -> PollAnswer | None:
        """Work for the client, or word that the run is over; None if there is nothing for it now."""
        with self._changed:
            if self._done:
                self._told.add(k)
                return self._done
            if self._stopping or not self._round or not self._round.wants(k):
                return None
            left = max(0.0, self._round.deadline - monotonic())
            offer = replace_offer(self._offer, deadline_s=left)
            if not self.guards.anonymous:
                return offer
            # A token is given once: the server does not note to whom, only that this client has had its one.
            if k in self._given:
                return None
            self._given.add(k)
            token = secrets.token_urlsafe(32)
            self._tokens.add(sha256(token.encode()).digest())
            return replace_offer(offer, upload_token=token)

    def wait_answer(self, held: bool) -> WaitAnswer:
        """When to come back, spread out so that clients do not come all at once."""
        with self._changed:
            pause = 0.5 if held else max(1.0, len(self._seen) / POLL_RATE)
            return WaitAnswer(retry_after_s=pause * (0.5 + secrets.randbelow(1000) / 1000), committed=self._committed)

    def frame_limit(self) -> int:
        """The longest upload that the round under way can need."""
        with self._changed:
            return max_frame_bytes(self._expected.numbers, self._expected.codec) if self._round else 0

    def token_source(self, token: str) -> bytes | None:
        """The name under which an anonymous update counts, if the token was given in this round."""
        hashed = sha256(token.encode()).digest()
        with self._changed:
            return hashed if self._round and hashed in self._tokens else None

    def judge(self, source: Hashable, round: int, attempt: int) -> Verdict:
        with self._changed:
            if not self._round or self._stopping:
                return Verdict.WRONG_ROUND
            return self._round.judge(source, round, attempt)

    def add(self, source: Hashable, round: int, attempt: int, frame: bytes | memoryview) -> Verdict:
        """Check an update and add it to the sum, once; UpdateRefused if it is not what was asked for."""
        with self._changed:
            expected = self._expected
        decoded = decode_update(frame, expected)  # the long part, outside of the lock
        with self._changed:
            verdict = self.judge(source, round, attempt)
            if verdict is Verdict.ACCEPTED:
                assert self._round
                if self._expected is not expected:
                    return Verdict.WRONG_ROUND
                self._add_to_sum(Update(decoded.vector, decoded.weight))
                self._received.append(Received(decoded.weight, decoded.metrics, len(frame)))
                self._round.accept(source)
                self.accepted += 1
                if self._round.phase is not Phase.COLLECTING:
                    self._changed.notify_all()
            return verdict

    def _add_to_sum(self, update: Update) -> None:
        try:
            self._sum.add(update.vector, update.weight)
        except Diverged as error:
            raise UpdateRefused(Reason.NOT_FINITE, str(error)) from None

    def fail(self, k: int, round: int, attempt: int) -> bool:
        """A client will not send its update; false if it was not asked for one."""
        with self._changed:
            current = self._round
            if not current or (current.round, current.attempt) != (round, attempt) or k not in current.invited:
                return False
            current.fail(k, monotonic())
            self._changed.notify_all()
            return True

    # What operators ask

    def status(self) -> dict[str, object]:
        with self._changed:
            current = self._round
            return {
                "committed": self._committed,
                "done": self._done is not None,
                "clients": len(self._clients),
                "revoked": sum(row.revoked for row in self._clients.values()),
                "present": int(np.count_nonzero(self.sizes())),
                "held_polls": self._held_in_all,
                "round": None if not current else {
                    "round": current.round,
                    "attempt": current.attempt,
                    "phase": str(current.phase),
                    "invited": len(current.invited),
                    "accepted": len(current.accepted),
                    "failed": len(current.failed),
                    "goal": current.goal,
                    "seconds_left": round(max(0.0, current.deadline - monotonic()), 1),
                },
                "updates_accepted": self.accepted,
                "updates_refused": dict(self.refused),
            }  # fmt: skip


def replace_offer(offer: WorkOffer, **changes: object) -> WorkOffer:
    return replace(offer, **changes)  # type: ignore[arg-type]


class RemoteData(FederatedData):
    """The clients that are there now. Their examples are theirs: only n_k is known, and the server's own test set."""

    def __init__(self, hub: Hub, test: FederatedData, clients: int | None) -> None:
        self.name = test.name
        self._hub, self._test, self._clients = hub, test, clients

    @property
    def sizes(self) -> np.ndarray:
        sizes = self._hub.sizes()
        return np.pad(sizes, (0, max(0, (self._clients or 0) - len(sizes))))

    def client(self, k: int) -> Examples:
        raise AssertionError("the data of a remote client never leaves it")

    @property
    def test(self) -> Examples:
        return self._test.test

    @property
    def fingerprint(self) -> str:
        return self._test.fingerprint
