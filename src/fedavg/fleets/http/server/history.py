"""The committed rounds: which is the last, and which clients counted in the latest ones."""

from collections import OrderedDict
from typing import Final

from fedavg.fleets.http.server.shared import Shared
from fedavg.fleets.http.server.store import Counted

#: For this many committed rounds, the clients that counted are kept in memory; for older ones the database is asked.
REMEMBERED: Final = 64


class History:
    """Thread-safe."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._counted: OrderedDict[int, Counted] = OrderedDict()
        #: The last committed round.
        self.last = 0

    def commit(self, round: int, counted: Counted | None) -> None:
        """A round is on disk; `counted` is None if this server did not collect it."""
        with self._shared.changed:
            self.last = round
            if counted:
                self.remember(round, counted)

    def remember(self, round: int, counted: Counted) -> None:
        """Keep the clients of a committed round: those that hold an update of it will ask."""
        with self._shared.changed:
            self._counted[round] = counted
            if len(self._counted) > REMEMBERED:
                self._counted.popitem(last=False)

    def counted_in(self, round: int) -> Counted | None:
        """The clients of a committed round, if they are in memory."""
        with self._shared.changed:
            return self._counted.get(round)
