"""`Algorithm`: both halves of a federated algorithm, in one file each. Knows nothing of processes or networks."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor

from fedavg.types import State, Sum, Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client
    from fedavg.plan import Plan


class Algorithm(ABC):
    name: str
    #: A baseline that is not federated asks for all data in the hands of one client.
    pools_data: bool = False

    @abstractmethod
    def client_update(self, client: "Client", weights: Tensor, work: Work) -> Update:
        """The client half: from the shared weights, shape (P,), to this client's weighted change."""

    @abstractmethod
    def server_update(self, state: State, total: Sum, work: Work) -> State:
        """The server half: from the cohort's weighted sum to the next state."""

    @abstractmethod
    def check(self, plan: "Plan") -> None:
        """Raise a PlanError if the plan's settings do not fit this algorithm."""
