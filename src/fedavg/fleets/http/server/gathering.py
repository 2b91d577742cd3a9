"""How the sum of a round that is closed comes together: all of it is here, or replicas have parts of it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from fedavg.fleets.http.server.collecting import Collecting
from fedavg.fleets.http.server.rounds import OpenRound
from fedavg.fleets.http.server.underway import Received
from fedavg.types import Update

#: Of a group: the sum, float64, or the single updates by client; and what was received.
Total = tuple[Tensor, dict[int, Update], list[Received]]


class Gathering(ABC):
    """Asked by the server loop, when it opens a round and when the round is closed."""

    @abstractmethod
    def open(self, round: OpenRound, cap: float) -> float:
        """Others may collect from now on, too; returns the cap on weights that holds, if the round was open before."""

    @abstractmethod
    def totals(self) -> Sequence[Total] | None:
        """What there is of each group; None if a part is lost: the round is open again."""


class OwnSum(Gathering):
    """Every update came to this server."""

    def __init__(self, collecting: Collecting) -> None:
        self._collecting = collecting

    def open(self, round: OpenRound, cap: float) -> float:
        return cap

    def totals(self) -> Sequence[Total]:
        return self._collecting.totals()
