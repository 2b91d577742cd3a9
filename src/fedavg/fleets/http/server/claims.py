"""Whether an update may be added to the sum here: a single server decides alone, a replica asks the database."""

from abc import ABC, abstractmethod
from collections.abc import Hashable

from fedavg.fleets.http.server.rounds import Receipt


class Claims(ABC):
    """Called before and after an update is added, by the holder of the lock for adding."""

    @abstractmethod
    def claim(self, source: Hashable, round: int, attempt: int) -> Receipt:
        """ACCEPTED if the update is to be added here, and on no other replica."""

    @abstractmethod
    def release(self, source: Hashable, round: int, attempt: int) -> None:
        """Give back a claim on an update that could not be added."""

    @abstractmethod
    def fail(self, k: int, round: int, attempt: int, why: str) -> None:
        """Record that the client will send no update."""


class Alone(Claims):
    """A server without replicas: the update can be in no other sum."""

    def claim(self, source: Hashable, round: int, attempt: int) -> Receipt:
        return Receipt.ACCEPTED

    def release(self, source: Hashable, round: int, attempt: int) -> None:
        pass

    def fail(self, k: int, round: int, attempt: int, why: str) -> None:
        pass
