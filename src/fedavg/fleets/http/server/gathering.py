"""How the sum of a closed round comes together: all of it is here, or replicas have parts of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import fsum
from typing import Any

from torch import Tensor

from fedavg.fleets.attendance import Attendance
from fedavg.fleets.fleet import CohortResult
from fedavg.fleets.http.server.collecting import Collecting
from fedavg.fleets.http.server.invitations import Invitation
from fedavg.fleets.http.server.rounds import OpenRound, RoundPhase
from fedavg.fleets.http.server.underway import Received
from fedavg.metrics import Measure
from fedavg.metrics.training import sums_over
from fedavg.types import Sum, Update

#: Repeats a database call until it succeeds.
Retried = Callable[[Callable[[], Any]], Any]
#: For a group: the sum, float64, or the single updates by client; and what was received.
Total = tuple[Tensor, dict[int, Update], list[Received]]


class Gathering(ABC):
    """Called by the server loop when it opens a round and when the round is closed."""

    @abstractmethod
    def open(self, round: OpenRound, cap: float) -> float:
        """Let other replicas collect too; returns the cap on weights: the earlier one if the round was open before."""

    @abstractmethod
    def totals(self) -> Sequence[Total] | None:
        """The total of each group; None if a part is lost, in which case the round is open again."""


class OwnSum(Gathering):
    """All updates arrive at this server."""

    def __init__(self, collecting: Collecting) -> None:
        self._collecting = collecting

    def open(self, round: OpenRound, cap: float) -> float:
        return cap

    def totals(self) -> Sequence[Total]:
        return self._collecting.totals()


def collected(
    invitation: Invitation, collecting: Collecting, gathering: Gathering, retried: Retried
) -> Sequence[Total] | None:
    """Ask the invited clients and wait: the total of each group, or None if the attempt is abandoned."""
    cap = retried(lambda: gathering.open(invitation.round, collecting.weight_cap()))
    collecting.open(invitation.round, invitation.groups, cap=cap)
    while collecting.wait() is RoundPhase.COMMITTING:
        totals: Sequence[Total] | None = retried(gathering.totals)
        if totals is not None:
            return totals
    return None


def summed(
    measures: Mapping[str, Measure],
    vector: Tensor,
    singles: dict[int, Update],
    received: list[Received],
    staleness: int,
) -> CohortResult:
    """The result of a group: its sum, or its single updates, with their cost."""
    sent = [r.bytes_up for r in received]
    total = Sum(vector, fsum(r.weight for r in received), len(received), sums=sums_over(measures, received))
    seen = {r.client: r.seen for r in received if r.client is not None and r.seen}
    there = Attendance(len(received), seen, staleness={staleness: len(received)})
    return CohortResult(total, sum(sent), max(sent), 0, attendance=there, singles=singles or None)
