"""`Sampler`: who is asked in a round. It knows clients by number, how many examples they have and, if it asks, their
losses; it knows nothing of where they run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedavg.dp.accounting import Sampling
from fedavg.errors import PlanError
from fedavg.samplers.memory import Memory
from fedavg.specs import Pluggable

#: From client numbers to the mean loss of the current model on the training examples of each, shape (len,).
Losses = Callable[[Sequence[int]], np.ndarray]


@dataclass(frozen=True)
class Pool:
    """What a sampler may know when a cohort is drawn.

    `clients` are the numbers of those who can be asked, in rising order, and `sizes` their n_k, both of shape (N,).
    `size` is m, the clients wanted. All that is random comes from `rng`, which belongs to this round and attempt.

    >>> from fedavg import InTurns
    >>> sizes, rng = np.array([5, 5, 9, 2]), np.random.default_rng(0)
    >>> pool = Pool(2, 0, size=2, clients=np.arange(4), sizes=sizes, rng=rng, losses=lambda clients: sizes[clients])
    >>> [int(k) for k in InTurns().draw(pool)]
    [2, 3]
    """

    round: int
    #: 0, or how many attempts at this round were abandoned before.
    attempt: int
    size: int
    clients: np.ndarray
    sizes: np.ndarray
    rng: np.random.Generator
    losses: Losses
    #: What the server has learned about all K clients, for a sampler that `remembers`.
    memory: Memory | None = None

    @property
    def known(self) -> Memory:
        """The memory, for a sampler that needs it."""
        if self.memory is None:
            raise PlanError(
                "sampling: nothing is remembered of clients here; expected a world, such as world = 'always', or "
                "devices over HTTP"
            )
        return self.memory


class Sampler(Pluggable, ABC):
    """A way to choose S_t. A sampler of your own is a frozen dataclass of this class:

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Largest(Sampler):
    ...     def draw(self, pool):
    ...         return pool.clients[np.argsort(-pool.sizes, kind="stable")[: pool.size]]
    """

    kind = "sampling"
    #: True if it uses losses of single clients, so that the server must be allowed to see them: remembered from their
    #: reports, if it `remembers`; else the current ones (`pool.losses`), in a simulation.
    needs_losses: bool = False
    #: True if all clients must be within reach: in a simulation, not over a network.
    needs_everyone: bool = False
    #: True if it uses what earlier rounds showed about clients (`pool.memory`).
    remembers: bool = False

    @classmethod
    def registry(cls) -> Mapping[str, type["Sampler"]]:
        from fedavg.samplers import SAMPLERS

        return SAMPLERS

    @abstractmethod
    def draw(self, pool: Pool) -> Sequence[int] | np.ndarray:
        """The clients that are asked, each once. The same pool gives the same cohort."""

    def privacy(self, clients: int, cohort: int) -> Sampling | None:
        """The sampling by which noise on the sum is charged; None if this sampler rules out differential privacy.

        `EveryRound()` charges each round in full. That holds only if the choice does not depend on the clients' data.
        """
        return None
