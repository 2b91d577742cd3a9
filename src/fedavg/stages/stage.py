"""`Stage`: a step around the sum. On the client it changes the update before it is sent, on the server the sum."""

from abc import ABC, abstractmethod

import numpy as np

from fedavg.types import Sum, Update


class Stage(ABC):
    """Clients apply a plan's stages in order, the server in reverse; each draws from the generator it is given."""

    @abstractmethod
    def on_client(self, update: Update, rng: np.random.Generator) -> Update:
        """What leaves the client."""

    @abstractmethod
    def on_sum(self, total: Sum, rng: np.random.Generator) -> Sum:
        """What the server half of the algorithm sees."""
