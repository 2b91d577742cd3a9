"""The life of a round once its clients are selected: collecting → committing → done, or abandoned and tried again.

Pure logic: no clock, no network, no database. The time is passed in and only ever compared with itself (monotonic), so
a wall clock that is wrong or steps back changes nothing.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, isfinite

from fedavg.errors import PlanError


class RoundPhase(StrEnum):
    COLLECTING = "collecting"
    COMMITTING = "committing"
    DONE = "done"
    ABANDONED = "abandoned"


class Receipt(StrEnum):
    """What becomes of a well-formed update."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    NOT_INVITED = "not-invited"
    WRONG_ROUND = "wrong-round"
    ROUND_CLOSED = "round-closed"


@dataclass(frozen=True)
class Rules:
    """When a round has enough updates. `over_selection` invites more clients than needed, so that a round need not wait
    for stragglers; `quorum` is the share of the wanted updates below which a round is not worth its noise; `share` is
    the share of them that ends the round before its deadline."""

    deadline_s: float = 600.0
    over_selection: float = 1.0
    quorum: float = 0.5
    share: float = 1.0

    def __post_init__(self) -> None:
        checks = {
            "deadline": (self.deadline_s, isfinite(self.deadline_s) and self.deadline_s > 0, "seconds above 0"),
            "over-selection": (self.over_selection, 1 <= self.over_selection <= 10, "a factor from 1 to 10"),
            "quorum": (self.quorum, 0 < self.quorum <= 1, "a share above 0 and up to 1"),
            "share": (self.share, self.quorum <= self.share <= 1, f"a share from the quorum, {self.quorum:g}, to 1"),
        }
        for name, (value, good, expected) in checks.items():
            if not good:
                raise PlanError(f"{name}: got {value}; expected {expected}")

    def invited(self, goal: int) -> int:
        """How many clients to invite so that `goal` will answer."""
        return ceil(round(goal * self.over_selection, 9))

    def goal(self, invited: int) -> int:
        """How many answers were wanted, given how many clients were invited."""
        return next(goal for goal in range(invited, 0, -1) if self.invited(goal) <= invited)

    def enough(self, goal: int) -> int:
        """How many updates end a round when `goal` were wanted."""
        return max(1, ceil(round(goal * self.share, 9)))

    def minimum(self, goal: int) -> int:
        return max(1, ceil(round(goal * self.quorum, 9)))


@dataclass
class OpenRound:
    """One attempt at one round. An update is identified by its `source`: a client's number, or a single-use token."""

    round: int
    attempt: int
    model: str
    invited: Collection[int]
    goal: int
    minimum: int
    #: The latest time at which it ends, on the same clock as `now`.
    deadline: float
    phase: RoundPhase = RoundPhase.COLLECTING
    reason: str = ""
    accepted: set[Hashable] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def continues(self, other: "OpenRound") -> bool:
        """Is the other one this same attempt, and not over yet?"""
        same = (self.round, self.attempt, self.model) == (other.round, other.attempt, other.model)
        return same and self.phase in (RoundPhase.COLLECTING, RoundPhase.COMMITTING)

    def wants(self, client: int) -> bool:
        """Should this client be offered the work?"""
        answered = client in self.accepted or client in self.failed
        return self.phase is RoundPhase.COLLECTING and client in self.invited and not answered

    def judge(self, source: Hashable, round: int, attempt: int) -> Receipt:
        """What to do with an update. It changes nothing, so it can be called before the update is read."""
        if (round, attempt) != (self.round, self.attempt):
            return Receipt.WRONG_ROUND
        if isinstance(source, int) and source not in self.invited:
            return Receipt.NOT_INVITED
        if source in self.accepted:
            return Receipt.DUPLICATE
        return Receipt.ACCEPTED if self.phase is RoundPhase.COLLECTING else Receipt.ROUND_CLOSED

    def accept(self, source: Hashable) -> None:
        """Record that the update is in the sum. The last wanted update closes the round."""
        assert self.phase is RoundPhase.COLLECTING
        self.accepted.add(source)
        self.failed.discard(source) if isinstance(source, int) else None
        if len(self.accepted) >= self.goal:
            self.phase = RoundPhase.COMMITTING

    def note(self, accepted: Collection[int], failed: Collection[int], sealed: bool = False) -> None:
        """Record what all replicas together have. The round reopens if a replica's part was lost."""
        if self.phase in (RoundPhase.DONE, RoundPhase.ABANDONED):
            return
        self.accepted, self.failed = set(accepted), set(failed) - set(accepted)
        full = sealed or len(self.accepted) >= self.goal
        self.phase = RoundPhase.COMMITTING if full else RoundPhase.COLLECTING

    def fail(self, client: int, now: float) -> None:
        """Record that a client will not send an update."""
        if client in self.invited and client not in self.accepted:
            self.failed.add(client)
            self.tick(now)

    def tick(self, now: float) -> None:
        """Close or abandon the round if its time is up, or if there is nobody left to wait for."""
        if self.phase is not RoundPhase.COLLECTING:
            return
        have, pending = len(self.accepted), len(self.invited) - len(self.failed) - len(self.accepted)
        if have + pending < self.minimum:
            self._abandon(f"{len(self.failed)} of {len(self.invited)} clients failed or declined; at least "
                          f"{self.minimum} updates are needed")  # fmt: skip
        elif pending == 0 or (now >= self.deadline and have >= self.minimum):
            self.phase = RoundPhase.COMMITTING
        elif now >= self.deadline:
            self._abandon(f"{have} of {self.goal} wanted updates came before the deadline; at least {self.minimum} "
                          "are needed")  # fmt: skip

    def _abandon(self, reason: str) -> None:
        self.phase, self.reason = RoundPhase.ABANDONED, reason
