"""What the request handlers and the server loop share: who is there, the round under way, the sum so far.

One lock guards it all, and is never held for long: the event loop waits for it. A second one is for whoever adds to the
sum or closes the round, so that a closed round's sum is whole. Handlers run in the event loop and in its threads; the
server loop runs in the main thread. An update is decoded, added to the sum and forgotten: only the sum, the weight and
the metrics are kept, and nothing of it reaches the disk. After a crash the sum is gone, and the clients, who keep their
updates until the round is committed, are asked again.
"""

import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from math import ceil, inf
from statistics import median_low
from threading import Condition, Lock
from time import monotonic
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from fedavg.errors import Diverged, PlanError
from fedavg.fleets.http.protocol.changes import Changes
from fedavg.fleets.http.protocol.messages import DoneAnswer, JudgeOffer, MaskAnswer, PollAnswer, WaitAnswer, WorkOffer
from fedavg.fleets.http.protocol.wire import (
    MIN_WEIGHT,
    Expected,
    UpdateFault,
    UpdateRefused,
    decode_update,
    max_frame_bytes,
)
from fedavg.fleets.http.server.conduct import Conduct, outstanding
from fedavg.fleets.http.server.rounds import OpenRound, Receipt, RoundPhase
from fedavg.fleets.http.server.store import ClientRow, Counted
from fedavg.sums import ExactSum, TooLarge, to_float
from fedavg.types import Part, Update

if TYPE_CHECKING:
    from fedavg.fleets.http.server.secure import SecureRound
    from fedavg.secagg import Aggregate, Encoding

#: A client counts as present for so long after its last request: longer than a held poll and the pause after it.
PRESENT_S: Final = 90.0
#: Polls a second that the server aims at; with more clients than that, each is told to come back later.
POLL_RATE: Final = 500.0
#: Committed rounds of which is remembered who counted; of older ones the database is asked.
REMEMBERED: Final = 64
#: Polls that are held open at a time; beyond, they are answered at once.
HELD: Final = 12_000


@dataclass(frozen=True)
class Guards:
    """Who is let in, bounds on what a client may send, and whether updates come without a name."""

    max_weight: float = 1e6
    #: No update counts for more than so many times the median n_k of the clients that are enrolled.
    times_median: float = 5.0
    max_norm: float | None = None
    anonymous: bool = False
    #: New clients wait until the operator approves of them.
    approval: bool = False

    def __post_init__(self) -> None:
        checks = {
            "max-weight": (
                self.max_weight,
                MIN_WEIGHT <= self.max_weight < inf,
                f"a finite number from {MIN_WEIGHT:g}",
            ),
            "times-median": (self.times_median, self.times_median >= 1, "a factor from 1"),
            "norm-bound": (self.max_norm, self.max_norm is None or 0 < self.max_norm < inf, "a finite number above 0"),
        }
        for name, (value, good, expected) in checks.items():
            if not good:  # every comparison with NaN is false: it would be a bound that nothing exceeds
                raise PlanError(f"{name}: got {value}; expected {expected}")


@dataclass(frozen=True)
class Group:
    """Clients of a round that start from the same model: what they are offered, and what is expected of them."""

    clients: frozenset[int]
    offer: WorkOffer | JudgeOffer
    expected: Expected
    #: From a checked vector and its weight to the update that counts.
    arrived: Callable[[Tensor, float], Update]
    #: From n_k to what the client's metrics may be.
    metric_bounds: Callable[[int], Mapping[str, tuple[float, float]]] = lambda _: {}


class Collected:
    """The sum over a group so far."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.ring = torch.zeros(group.expected.numbers, dtype=torch.int64)
        self.sum = ExactSum(self.ring, max(1, len(group.clients)))
        self.received: list[Received] = []
        #: How large the largest number was that each client added, where it is known who it was.
        self.sizes: dict[int, float] = {}
        #: Hashes of the upload tokens that were given out: a set, which has no order that would tell to whom.
        self.tokens: set[bytes] = set()


@dataclass(frozen=True)
class Received:
    """What is kept of an update once it is in the sum."""

    weight: float
    metrics: dict[str, float]
    bytes_up: int


class Hub:
    """Thread-safe; every public method takes the lock by itself."""

    def __init__(self, guards: Guards, rest_s: float = 60.0) -> None:
        self.guards = guards
        self._conduct = Conduct(rest_s)
        self._changed = Condition()
        #: Taken before `_changed` by whoever may end the collecting, and kept while an update is added.
        self._adding = Lock()
        self._clients: dict[int, ClientRow] = {}
        self._revoked: set[int] = set()
        self._seen: dict[int, float] = {}
        self._held: Counter[int] = Counter()
        self._held_in_all = 0
        self._round: OpenRound | None = None
        self._secure: SecureRound | None = None
        #: Clients that have opened a sum of the round under way: they open no other, so they are not invited again.
        self._opened: set[int] = set()
        self._models: dict[str, bytes] = {}
        self._changes: dict[str, Changes] = {}
        self._latest: list[str] = []
        self._committed = 0
        self._counted: OrderedDict[int, Counted] = OrderedDict()
        self._done: DoneAnswer | None = None
        self._told: set[int] = set()
        self._stopping = False
        #: Wakes the held polls of some clients; set by the application once its event loop runs.
        self.wake: Callable[[Iterable[int]], None] = lambda _: None
        self.accepted = 0
        self.capped = 0
        self._cap = inf
        self.refused: Counter[str] = Counter()
        self._reports: Counter[str] = Counter()

    # Clients

    def know(self, rows: Sequence[ClientRow]) -> None:
        """Clients as the database has them; one that is revoked is shut out at once."""
        with self._changed:
            for row in rows:
                self._clients[row.k] = row
                if row.revoked:
                    self._revoked.add(row.k)
                    self._seen.pop(row.k, None)
                    if self._round:
                        self._round.fail(row.k, monotonic())  # nobody waits for it any more
            self._changed.notify_all()
        self.wake([row.k for row in rows if row.revoked])

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

    def sizes(self, opened: bool = False) -> np.ndarray:
        """n_k of every client that is there now, zero for the others.

        Who has opened a sum of this round is there only with `opened`: it trains no more in it, but may judge.
        """
        with self._changed:
            sizes = np.zeros(max(self._clients, default=-1) + 1, np.int64)
            now = monotonic()
            for k, seen in self._seen.items():
                there = (seen >= now - PRESENT_S or self._held[k]) and (opened or k not in self._opened)
                if there and self._clients[k].approved and not self._conduct.rests(k, now):
                    sizes[k] = self._clients[k].examples
            return sizes

    @property
    def enrolled(self) -> int:
        """Clients in all."""
        return len(self._clients)

    def shut_out(self, population: int) -> int:
        """Of the first so many numbers, how many can not come: revoked, at rest, or bound by a sum they have opened."""
        with self._changed:
            out = self._revoked | self._opened | self._conduct.resting(monotonic())
            return sum(k < population for k in out)

    @property
    def resting(self) -> int:
        """How many are not invited for a while."""
        with self._changed:
            return len(self._conduct.resting(monotonic()))

    def call_back(self, count: int) -> list[int]:
        """End the rest of some clients that are there and were only silent."""
        with self._changed:
            return self._conduct.call_back(self._seen, count, monotonic())

    def wait_for_clients(self, wanted: Callable[[], int], timeout: float) -> int:
        """Wait until as many clients with examples are there as are wanted, or for so long; returns how many are."""
        until = monotonic() + timeout
        with self._changed:
            while (there := self._present(needed := wanted())) < needed and not self._stopping:
                if (left := until - monotonic()) <= 0:
                    break
                self._changed.wait(min(left, 1.0))
            return there

    def _present(self, needed: int) -> int:
        # Every newcomer asks this: the exact count, which looks at all, is taken only when it may be enough.
        return int(np.count_nonzero(self.sizes())) if len(self._seen) >= needed else len(self._seen)

    # The round

    def publish(self, parts: Sequence[Part]) -> list[str]:
        """Offer models for download; returns their SHA-256. Those before stay for who still fetches them."""
        data = [part.shared.numpy().astype("<f4", copy=False).tobytes() for part in parts]
        digests = [sha256(content).hexdigest() for content in data]
        changes = {digest: Changes(part.frames) for digest, part in zip(digests, parts, strict=True)}
        with self._changed:
            self._models = {digest: self._models[digest] for digest in self._latest}
            self._models |= zip(digests, data, strict=True)
            self._changes = {digest: self._changes[digest] for digest in self._latest} | changes
            self._latest = digests
        return digests

    def model(self, digest: str) -> bytes | None:
        return self._models.get(digest)

    def changes(self, digest: str, count: int) -> memoryview | None:
        """The last changes that lead to a model; None if so many are not there."""
        known = self._changes.get(digest)
        return known.last(count) if known else None

    def open(self, round: OpenRound, groups: Iterable[Group], secure: "SecureRound | None" = None) -> None:
        """Begin to collect: updates, or with `secure` the messages of a session of secure aggregation."""
        with self._changed:
            self._secure = secure
            self._collected = [Collected(group) for group in groups]
            self._of_client = {k: collected for collected in self._collected for k in collected.group.clients}
            self._given: set[int] = set()
            self._round = round
            self._cap = self._weight_cap()
            self._conduct.new_attempt()
        self.wake(round.invited)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Collect something else meanwhile; afterwards the round before is as it was."""
        with self._changed:
            before = self._round, self._secure, self._collected, self._of_client, self._given
            opened = set(self._opened)
        try:
            yield
        finally:
            with self._adding, self._changed:
                self._round, self._secure, self._collected, self._of_client, self._given = before
                self._opened = opened

    def collect(self) -> RoundPhase:
        """Wait until the round under way is full, over or abandoned, or the server is to stop."""
        assert self._round
        while True:
            with self._adding, self._changed:
                self._round.tick(monotonic())
            with self._changed:
                if self._round.phase is not RoundPhase.COLLECTING or self._stopping:
                    self._strike_absent()
                    return self._round.phase
                self._changed.wait(max(0.0, min(self._round.deadline - monotonic(), 1.0)))

    def mask(self) -> bool:
        """Carry the session under way up to its last phase, which nobody hears of yet.

        False if the server is to stop or too many clients have failed.
        """
        with self._changed:
            assert self._secure
            while not self._secure.last_phase:
                if not self._phase_over():
                    return False
                self._secure.advance()
                self.wake(self._secure.inbox)
        return True

    def unmask(self) -> "Aggregate | None":
        """Have the sum of the session under way opened; None if the server is to stop or too many have failed."""
        with self._changed:
            assert self._round
            assert self._secure
            self._secure.begin_last_phase()
            self._round.deadline = self._secure.last_deadline
            self.wake(self._secure.inbox)
            ended = self._phase_over()
            self._opened |= self._secure.session.opened_by
            if not ended:
                return None
            self._round.phase = RoundPhase.COMMITTING  # nothing more is taken from here on
        aggregate = self._secure.finish()  # seconds of work, outside of the lock
        with self._changed:
            self._conduct.strike(self._secure.session.liars, monotonic(), guilty=True)
            self._round.accepted = set(aggregate.survivors)
            self.accepted += len(aggregate.survivors)
        return aggregate

    def _phase_over(self) -> bool:
        """Wait for the end of the session's phase; False if there will be none."""
        assert self._round
        assert self._secure
        while not self._stopping and self._round.phase is not RoundPhase.ABANDONED:
            if self._secure.over(self._round.failed):
                return True
            self._changed.wait(max(0.0, min(self._secure.deadline - monotonic(), 1.0)) or 0.1)
        return False

    @property
    def encoding(self) -> "Encoding":
        """How updates are written into the ring of the session under way."""
        assert self._secure
        return self._secure.session.terms.encoding

    def _strike_absent(self) -> None:
        """Who was asked and failed, or said nothing until the deadline, is not asked again for a while."""
        if self._stopping or self.guards.anonymous or not self._round:
            return
        now, asked = monotonic(), set(self._round.invited) - self._revoked
        silent = asked - self._round.accepted if now >= self._round.deadline else set()
        self._conduct.strike(silent | (asked & self._round.failed), now)

    def session_over(self) -> None:
        """Who left the session, or was silent in it, is not asked again for a while."""
        with self._changed:
            if self._stopping or not self._round or not self._secure:
                return
            absent = (self._secure.silent | self._round.failed) - self._revoked - self._opened - self._conduct.excused
            self._conduct.strike(absent, monotonic())

    def complain(self, by: int, of: int) -> bool:
        """A client has left the session because of another; true if that one is shut out for it now."""
        with self._changed:
            if not self._secure or not self._round or of not in self._round.invited:
                return False
            witnesses = self._secure.session.terms.topology.degree
            return self._conduct.complain(by, of, witnesses, monotonic())

    def discard(self) -> list[int]:
        """The sum of the session is one that its clients can not have: nobody counts, and some rest."""
        with self._changed:
            assert self._round
            survivors = [k for k in self._round.accepted if isinstance(k, int)]
            self._round.accepted = set()
            return self._conduct.suspect(survivors, monotonic())

    def examples(self, clients: Iterable[int]) -> list[int]:
        """n_k, as clients enrolled with it."""
        with self._changed:
            return [self._clients[k].examples for k in clients]

    def spoiled(self, reason: str) -> list[int]:
        """What came out of the attempt can not be used: who stands out by the size of its update rests."""
        with self._changed:
            culprits = outstanding({k: size for each in self._collected for k, size in each.sizes.items()})
            self._conduct.strike(culprits, monotonic(), guilty=True)
            if self._round:
                self._round.phase, self._round.reason = RoundPhase.ABANDONED, reason
            return culprits

    def session_bytes(self) -> tuple[list[int], int]:
        """Bytes that each client has sent in the session, and bytes that were sent to all of them."""
        with self._changed:
            assert self._secure
            return list(self._secure.bytes_up.values()), self._secure.bytes_down

    def abandoned_because(self) -> str:
        with self._changed:
            return self._round.reason if self._round else ""

    def pause(self, seconds: float) -> None:
        """Sleep, unless the server is to stop."""
        until = monotonic() + seconds
        with self._changed:
            while not self._stopping and (left := until - monotonic()) > 0:
                self._changed.wait(left)

    def totals(self) -> list[tuple[Tensor, list[Received]]]:
        """For each group of a round that is closed: the sum, float64, and what was received."""
        with self._changed:
            assert self._round
            assert self._round.phase is RoundPhase.COMMITTING
            return [(to_float(collected.ring), list(collected.received)) for collected in self._collected]

    def counted(self) -> list[int]:
        """The clients whose updates are in the sum, where they are known."""
        with self._changed:
            return sorted(source for source in (self._round.accepted if self._round else ()) if isinstance(source, int))

    def committed(self, round: int) -> None:
        """The round is on the disk: clients may let go of their updates."""
        with self._changed:
            self._committed = round
            self._opened.clear()
            self._conduct.clear(self.counted())
            if self._round:
                self._round.phase = RoundPhase.DONE
                self.remember(round, Counted(self._round.attempt, frozenset(self.counted())))

    def remember(self, round: int, counted: Counted) -> None:
        """Who is in a committed round: clients that hold an update of it will ask."""
        with self._changed:
            self._counted[round] = counted
            if len(self._counted) > REMEMBERED:
                self._counted.popitem(last=False)

    def counted_in(self, round: int) -> Counted | None:
        """Who is in a committed round, if that is remembered."""
        with self._changed:
            return self._counted.get(round)

    @property
    def last_committed(self) -> int:
        return self._committed

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

    def answer(self, k: int) -> PollAnswer | None:
        """Work for the client, or word that the run is over; None if there is nothing for it now."""
        with self._changed:
            if self._done:
                self._told.add(k)
                return self._done
            if self._stopping or not self._round or not self._round.wants(k):
                return None
            if self._secure and not self._secure.waits_for(k):
                return None
            if self._secure and not self._secure.first_phase:
                return MaskAnswer(
                    round=self._round.round,
                    attempt=self._round.attempt,
                    session=self._secure.name,
                    step=self._secure.step,
                )
            left = max(0.0, self._round.deadline - monotonic())
            collected = self._of_client[k]
            offer = replace(collected.group.offer, deadline_s=left)
            if not self.guards.anonymous:
                return offer
            # A token is given once: the server does not note to whom, only that this client has had its one.
            if k in self._given:
                return None
            self._given.add(k)
            token = secrets.token_urlsafe(32)
            collected.tokens.add(sha256(token.encode()).digest())
            return replace(offer, upload_token=token)

    def wait_answer(self, held: bool) -> WaitAnswer:
        """When to come back, spread out so that clients do not come all at once."""
        with self._changed:
            pause = 0.5 if held else max(1.0, len(self._seen) / POLL_RATE)
            pause *= 0.5 + secrets.randbelow(1000) / 1000
            return WaitAnswer(retry_after_s=pause, committed=self._committed, counted=None)

    def frame_limit(self) -> int:
        """The longest upload that the round under way can need."""
        with self._changed:
            if not self._round:
                return 0
            if self._secure:
                return self._secure.longest_message
            expected = self._collected[0].group.expected
            return max_frame_bytes(expected.numbers, expected.codec)

    def token_source(self, token: str) -> bytes | None:
        """The name under which an anonymous update counts, if the token was given in this round."""
        hashed = sha256(token.encode()).digest()
        with self._changed:
            return hashed if self._round and self._group_of(hashed) else None

    def judge(self, source: Hashable, round: int, attempt: int) -> Receipt:
        with self._changed:
            if not self._round or self._stopping:
                return Receipt.WRONG_ROUND
            if isinstance(source, int) and self._clients[source].revoked:
                return Receipt.NOT_INVITED
            return self._round.judge(source, round, attempt)

    def judge_session(self, k: int, round: int, attempt: int) -> Receipt:
        """What would become of a client's next message in a session, before it is read."""
        with self._changed:
            verdict = self.judge(k, round, attempt)
            if verdict is Receipt.ACCEPTED and (self._secure is None or not self._secure.waits_for(k)):
                return Receipt.WRONG_ROUND
            return verdict

    def session_message(self, k: int, round: int, attempt: int) -> bytes | None:
        """The message of the session that waits for a client."""
        with self._changed:
            if not self._secure or not self._round or self._round.judge(k, round, attempt) is not Receipt.ACCEPTED:
                return None
            return self._secure.inbox.get(k)

    def session_answer(self, k: int, round: int, attempt: int, body: bytes | memoryview) -> Receipt:
        """A client's message in the session; SecAggError if it is refused."""
        with self._changed:
            verdict = self.judge(k, round, attempt)
            if self._secure is None:
                return Receipt.WRONG_ROUND
            if verdict is Receipt.ACCEPTED:
                assert self._secure
                self._secure.receive(k, body)
                if self._round and self._secure.over(self._round.failed):
                    self._changed.notify_all()
            return verdict

    def add(self, source: int | bytes, round: int, attempt: int, frame: bytes | memoryview) -> Receipt:
        """Check an update and add it to the sum, once; UpdateRefused if it is not what was asked for."""
        with self._changed:
            collected = self._group_of(source)
        if collected is None:
            return Receipt.NOT_INVITED
        decoded = decode_update(frame, self._bounded(collected, source))
        update = collected.group.arrived(decoded.vector, min(decoded.weight, self._cap))
        with self._adding:
            verdict = self.judge(source, round, attempt)
            if verdict is not Receipt.ACCEPTED:
                return verdict
            if collected not in self._collected or self._secure:
                return Receipt.WRONG_ROUND
            size = _add(collected.sum, update)
            with self._changed:
                if isinstance(source, int):
                    collected.sizes[source] = size
                self.capped += decoded.weight > self._cap
                collected.received.append(Received(update.weight, {**decoded.metrics, **update.metrics}, len(frame)))
                self._accept(source)
            return verdict

    def _accept(self, source: Hashable) -> None:
        assert self._round
        self._round.accept(source)
        self.accepted += 1
        if self._round.phase is not RoundPhase.COLLECTING:
            self._changed.notify_all()

    def _group_of(self, source: int | bytes) -> Collected | None:
        if isinstance(source, int):
            return self._of_client.get(source)
        return next((collected for collected in self._collected if source in collected.tokens), None)

    def _bounded(self, collected: Collected, source: Hashable) -> Expected:
        expected = collected.group.expected
        """No client counts for more than the examples that it enrolled with, nor says what these can not give."""
        most = expected.max_weight
        if isinstance(source, int):
            most = min(most, self._clients[source].examples)
        return replace(expected, max_weight=most, metric_bounds=collected.group.metric_bounds(ceil(most)))

    def _weight_cap(self) -> float:
        """What an update counts for at the most: a client's n_k is its own word, and one must not outweigh all."""
        sizes = [row.examples for row in self._clients.values() if row.examples and row.approved and not row.revoked]
        return self.guards.times_median * median_low(sizes) if sizes else inf

    def refuse(self, source: Hashable, round: int, attempt: int, reason: str) -> None:
        """Count a refused update, and do not ask its client again: it would send the same."""
        with self._changed:
            self.refused[reason] += 1
        if isinstance(source, int):
            self.fail(source, round, attempt)

    def fail(self, k: int, round: int, attempt: int) -> bool:
        """A client will not send its update; false if it was not asked for one."""
        with self._adding, self._changed:
            current = self._round
            if not current or (current.round, current.attempt) != (round, attempt) or k not in current.invited:
                return False
            current.fail(k, monotonic())
            self._changed.notify_all()
            return True

    def reported(self, k: int, reason: str) -> None:
        """A client has said why it does not take part."""
        with self._changed:
            self._reports[reason] += 1
            if reason == "round-opened":
                self._opened.add(k)

    # What operators ask

    def status(self) -> dict[str, object]:
        with self._changed:
            current = self._round
            return {
                "committed": self._committed,
                "done": self._done is not None,
                "clients": len(self._clients),
                "revoked": len(self._revoked),
                "resting": self.resting,
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
                "updates_capped": self.capped,
                "updates_refused": dict(self.refused),
                "reports": dict(self._reports),
            }  # fmt: skip


def _add(total: ExactSum, update: Update) -> float:
    try:
        return total.add(update.vector, update.weight)
    except TooLarge as error:
        raise UpdateRefused(UpdateFault.SHARE_EXCEEDED, str(error)) from None
    except Diverged as error:
        raise UpdateRefused(UpdateFault.NOT_FINITE, str(error)) from None
