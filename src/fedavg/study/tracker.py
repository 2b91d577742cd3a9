"""`Tracker`: what is told of a run while it trains."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from fedavg.metrics.rows import Row


class Tracker(ABC):
    """Is told of a run while it trains: where it begins, each round as a flat row, its end."""

    @abstractmethod
    def begin(self, plan: Mapping[str, Any], after: int) -> None:
        """The run begins, or goes on after so many rounds; rounds that were told beyond that are void."""

    @abstractmethod
    def row(self, row: Row) -> None:
        """A round is over."""

    @abstractmethod
    def end(self) -> None:
        """No more rounds come."""
