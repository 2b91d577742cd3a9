"""Whether an update may be added to the sum here: a server that is alone asks nobody, a replica asks the others."""

from abc import ABC, abstractmethod
from collections.abc import Hashable

from fedavg.fleets.http.server.rounds import Receipt


class Claims(ABC):
    """Asked with the lock that whoever adds has, before and after an update is added."""

    @abstractmethod
    def claim(self, source: Hashable, round: int, attempt: int) -> Receipt:
        """ACCEPTED if the update is to be added here, and nowhere else."""

    @abstractmethod
    def release(self, source: Hashable, round: int, attempt: int) -> None:
        """It could not be added after all."""

    @abstractmethod
    def fail(self, k: int, round: int, attempt: int, why: str) -> None:
        """The client will not send any."""


class Alone(Claims):
    """There is no other sum that the update could be in."""

    def claim(self, source: Hashable, round: int, attempt: int) -> Receipt:
        return Receipt.ACCEPTED

    def release(self, source: Hashable, round: int, attempt: int) -> None:
        pass

    def fail(self, k: int, round: int, attempt: int, why: str) -> None:
        pass
