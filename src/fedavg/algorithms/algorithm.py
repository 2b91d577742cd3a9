"""`Algorithm`: both halves of a federated algorithm, in one file each. Knows nothing of processes or networks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

from fedavg.metrics import Measure
from fedavg.optimizers import Optimizer
from fedavg.specs import Pluggable
from fedavg.types import Errands, Part, Schedule, State, Sum, Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client


class PlanOptions(Protocol):
    """What an algorithm may know about its plan.

    >>> def check(plan: PlanOptions) -> bool:
    ...     return plan.rounds > 1 and plan.schedule("E").values == {1}
    >>> from fedavg import Plan
    >>> check(Plan(E=1)), check(Plan(E="1,50:5"))
    (True, False)
    """

    @property
    def C(self) -> float: ...

    @property
    def E(self) -> int | str | Schedule: ...

    @property
    def B(self) -> float | str | Schedule: ...

    @property
    def rounds(self) -> int: ...

    @property
    def optimizer(self) -> str | Optimizer: ...

    @property
    def world(self) -> object:
        """The simulated world of the clients; None if there is none."""

    def schedule(self, name: str) -> Schedule:
        """E or B by round."""


class Algorithm(Pluggable, ABC):
    """Both halves of a federated algorithm. A subclass is a frozen dataclass; its fields are its settings.

    >>> from dataclasses import dataclass
    >>> from fedavg import Plan, run
    >>> @dataclass(frozen=True)
    ... class Cautious(Algorithm):
    ...     name = "cautious"
    ...     share: float = 0.5
    ...
    ...     def client_update(self, client, weights, work):
    ...         client.load(weights)
    ...         loss = client.epochs(work)
    ...         return Update(client.weights - weights, client.n, {"train_loss": loss})
    ...
    ...     def server_update(self, state, total, work):
    ...         return State(state.weights + self.share * total.mean.float())
    ...
    ...     def check(self, plan):
    ...         pass
    >>> run(Plan(data="mnist", algorithm=Cautious(0.9), C=0.02, rounds=1, workers=1)).summary.rounds
    1
    """

    kind = "algorithm"
    name: str
    #: True for a baseline that is not federated: it needs all data at one client.
    pools_data: bool = False
    #: True if the clients of a round may start from different versions of the model (`assign`).
    asynchronous: bool = False
    #: True if the client half keeps something between rounds in `client.state`.
    keeps_state: bool = False
    #: What a client measures and sends along: the name of a number, whose n_k-weighted mean over the cohort reaches the
    #: server half, or a `Measure` (any metric is one), whose sums the client sends and whose value reaches it.
    metrics: tuple[str | Measure, ...] = ("train_loss",)
    #: How many vectors of the model's size P the server shares, and a client sends back, concatenated.
    vectors_down: int = 1
    vectors_up: int = 1

    @classmethod
    def registry(cls) -> Mapping[str, type["Algorithm"]]:
        from fedavg.algorithms import ALGORITHMS

        return ALGORITHMS

    def initial(self, weights: Tensor) -> State:
        """The server's state before round 1."""
        return State(weights)

    def adjust(self, state: State, work: Work) -> Work:
        """The work of the round: the plan's, unless the algorithm decides it itself."""
        return work

    def shared(self, state: State) -> Tensor:
        """What every client of the cohort is sent, shape (vectors_down P,)."""
        return state.weights

    def assign(
        self,
        state: State,
        work: Work,
        cohort: Sequence[int],
        rng: np.random.Generator,
        errands: Errands | None = None,
    ) -> tuple[State, Sequence[Part]]:
        """Which clients train from which model in this round: by default the whole cohort, from what is shared now.

        An asynchronous algorithm keeps in the state which clients are still at work, and returns a part for each
        version in use. In a simulated world, `errands` says how the clients that it starts will fare.
        """
        return state, [Part(cohort, self.shared(state))]

    @abstractmethod
    def client_update(self, client: "Client", weights: Tensor, work: Work) -> Update:
        """The client half: from what the server shared to this client's weighted change, shape (vectors_up P,)."""

    @abstractmethod
    def server_update(self, state: State, total: Sum, work: Work) -> State:
        """The server half: from the cohort's weighted sum to the next state."""

    def metric_bounds(self, work: Work, examples: int, optimizer: Optimizer) -> Mapping[str, tuple[float, float]]:
        """The bounds of the metrics of a client with this many examples, as far as they follow from the work.

        The sums of a measure are called `name.0`, `name.1` and so on. A server refuses an update with metrics outside
        these bounds.
        """
        return {}

    def finished(self, state: State) -> bool:
        """True if the algorithm itself ends the run here, before the plan's last round."""
        return False

    @abstractmethod
    def check(self, plan: PlanOptions) -> None:
        """Raise a PlanError if the plan's settings do not fit this algorithm."""
