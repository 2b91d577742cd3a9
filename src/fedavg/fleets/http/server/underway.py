"""The attempt at a round that is under way: what its clients are offered, and what they have sent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedavg.fleets.attendance import Seen
from fedavg.fleets.http.protocol.messages import JudgeOffer, WorkOffer
from fedavg.fleets.http.protocol.wire import Expected
from fedavg.fleets.http.server.rounds import OpenRound
from fedavg.sums import ExactSum
from fedavg.types import Update

if TYPE_CHECKING:
    from fedavg.fleets.http.server.secure import SecureRound


@dataclass(frozen=True)
class Group:
    """Clients of a round that start from the same model: what they are offered, and what is expected of them."""

    clients: frozenset[int]
    offer: WorkOffer | JudgeOffer
    expected: Expected
    #: Makes the update that counts from a checked vector and its weight.
    arrived: Callable[[Tensor, float], Update]
    #: The bounds of a client's metrics, given its n_k.
    metric_bounds: Callable[[int], Mapping[str, tuple[float, float]]] = lambda _: {}
    #: What is kept of a single update until the round is over; nothing if the plan hides updates from the server.
    see: Callable[[Update], Seen | None] = lambda _: None
    #: True if a reducer needs single updates: they are kept, in memory, until the round is over.
    single_updates: bool = False


@dataclass(frozen=True)
class Received:
    """What is kept of an update once it is in the sum."""

    weight: float
    metrics: dict[str, float]
    bytes_up: int
    #: The client and what was seen of its update, where both may be known.
    client: int | None = None
    seen: Seen | None = None
    #: Seconds from the opening of the round to its arrival.
    seconds: float | None = None


class Collected:
    """A group's sum so far; or its single updates, by client or by the hash of an upload token."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.ring = torch.zeros(0 if group.single_updates else group.expected.numbers, dtype=torch.int64)
        self.sum = ExactSum(self.ring, max(1, len(group.clients)))
        #: The largest magnitude that each client added, where clients are known.
        self.sizes: dict[int, float] = {}
        self.empty()
        #: Hashes of the upload tokens that were given out. A set has no order that would reveal who received which.
        self.tokens: set[bytes] = set()

    def empty(self) -> None:
        """Clear the sum."""
        self.sum.reset()
        self.singles: dict[int | bytes, Update] = {}
        self.received: list[Received] = []
        #: The clients that are in the sum, where they are known.
        self.sources: set[int] = set()

    def add(self, source: int | bytes, update: Update) -> float:
        """Add an update; returns the largest magnitude in it, with its weight."""
        if not self.group.single_updates:
            return self.sum.add(update.vector, update.weight)
        self.singles[source] = update
        return update.weight * max(abs(float(end)) for end in update.vector.aminmax())

    def in_order(self) -> dict[int, Update]:
        """The single updates by client; anonymous updates are numbered in the order of their tokens."""
        known = {source: update for source, update in self.singles.items() if isinstance(source, int)}
        hidden = sorted(source for source in self.singles if isinstance(source, bytes))
        return known | {place: self.singles[source] for place, source in enumerate(hidden)}


@dataclass(frozen=True)
class UnderWay:
    """One attempt. `session` is set under secure aggregation, where clients send its messages, not updates."""

    round: OpenRound
    collected: Sequence[Collected]
    of_client: Mapping[int, Collected]
    session: "SecureRound | None"
    #: The largest weight of an update: a client reports its own n_k, and one client must not outweigh all others.
    weight_cap: float
    #: Clients that received their upload token.
    given: set[int] = field(default_factory=set)
    #: When it was opened, on the clock of this process.
    began: float = field(default_factory=monotonic)
    #: Why clients contributed nothing, for those that said so or were refused.
    why: dict[int, str] = field(default_factory=dict)

    def group_of(self, source: int | bytes) -> Collected | None:
        """The group of a client, or of the hash of an upload token."""
        if isinstance(source, int):
            return self.of_client.get(source)
        return next((each for each in self.collected if source in each.tokens), None)
