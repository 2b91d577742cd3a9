"""`Tracker`: reports a run while it trains."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from fedavg.metrics.rows import Row


class Tracker(ABC):
    """Receives a run while it trains: its start, each round as a flat row, its end."""

    @abstractmethod
    def begin(self, plan: Mapping[str, Any], after: int) -> None:
        """The run starts, or continues after this many rounds; later rounds that were already reported are void."""

    @abstractmethod
    def row(self, row: Row) -> None:
        """A round is over."""

    @abstractmethod
    def end(self) -> None:
        """No more rounds come."""
