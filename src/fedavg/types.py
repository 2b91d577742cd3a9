"""The data that flows between the parts of the system. No logic lives here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fedavg import trees
from fedavg.specs import Pluggable
from fedavg.trees import Tree

if TYPE_CHECKING:  # PyTorch takes a second to import, which the help texts need not wait for
    import numpy as np
    from torch import Tensor

#: The set that weights are judged on.
Split = Literal["test", "train", "held", "triggered"]


@dataclass(frozen=True)
class Examples:
    """Raw examples: all tensors of `x` and `y` share their first dimension. The task turns `x` into what its module
    takes: it is called as `module(x)`, `module(*x)` or `module(**x)`.

    >>> import torch
    >>> len(Examples(x=torch.zeros(5, 8), y=torch.zeros(5)))
    5
    """

    x: Tree
    y: Tree

    def __len__(self) -> int:
        return trees.length(self.y)


class FederatedData(Pluggable, ABC):
    """Examples by client, loaded lazily, plus a test set. Immutable and safe to read from forked processes.

    A source of your own derives from it; for data that fits in memory, `from_arrays` and its siblings are simpler.

    >>> import numpy as np
    >>> import torch
    >>> class Sines(FederatedData):
    ...     name, fingerprint = "sines", "sines-1"
    ...     sizes = np.array([20, 30])
    ...
    ...     def client(self, k):
    ...         x = torch.linspace(0, 1 + k, int(self.sizes[k]))[:, None]
    ...         return Examples(x, torch.sin(x))
    >>> len(Sines()), len(Sines().client(1)), Sines().test
    (2, 30, None)
    """

    kind = "data"
    name: str

    @classmethod
    def registry(cls) -> Mapping[str, Any]:
        """Nothing here: the named data sets (`fedavg.data.DATASETS`) are loaded with a partition."""
        return {}

    @property
    @abstractmethod
    def sizes(self) -> np.ndarray:
        """n_k for each client k, shape (K,), int64. A client may have none."""

    @abstractmethod
    def client(self, k: int) -> Examples:
        """The n_k training examples of client k."""

    def at(self, round: int) -> FederatedData:
        """The data as it is in a round; here always the same."""
        return self

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the labels, in the order of their numbers; None where labels are numbers, or no labels."""
        return None

    @property
    def test(self) -> Examples | None:
        """The examples that the server judges the shared model on; None where it has none."""
        return None

    @property
    def held_sizes(self) -> np.ndarray:
        """How many examples each client holds out of training to judge models on, shape (K,), int64."""
        return self.sizes * 0

    def held(self, k: int) -> Examples:
        """What client k holds out."""
        raise NotImplementedError(f"{self.name} holds nothing out")

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A short digest of the content and its partition: a run is resumed only on the data it was started on."""

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class Population:
    """The clients that a plan is for: how many (K); and, where it is known before round 1, n_k of each, shape (K,), and
    how many examples each holds out of training. On devices numbers may go beyond K: n_k is 0 for those not there."""

    count: int
    sizes: np.ndarray | None = None
    held_sizes: np.ndarray | None = None

    @property
    def with_data(self) -> int:
        """How many clients have examples; all of them if that is not known."""
        return self.count if self.sizes is None else int((self.sizes > 0).sum())


@dataclass(frozen=True)
class Update:
    """What one client sends back: its change to the weights, shape (P,) float32, and how much it counts (n_k).

    >>> import torch
    >>> Update(torch.ones(3), weight=20).weight
    20
    """

    vector: Tensor
    weight: float
    #: What the client measured, by the names of `Algorithm.metrics`: a number for an average, else the measure's sums.
    metrics: Mapping[str, float | Tensor | Sequence[float | Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sum:
    """The weighted sum of a cohort's updates, shape (P,) float64. The server half of an algorithm sees only this.

    >>> import torch
    >>> Sum(torch.tensor([6.0]), weight=3.0, count=2).mean
    tensor([2.])
    """

    vector: Tensor
    weight: float
    count: int
    #: What clients measured (`Algorithm.metrics`), as it follows from `sums`; the server loop fills it in.
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: K, how many clients there were to draw from; the server loop fills it in.
    population: int = 0
    #: The sums of each measure, as the fleet added them up.
    sums: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def mean(self) -> Tensor:
        """Σ n_k Δ_k / Σ n_k over the cohort (the paper's Algorithm 1 with its erratum)."""
        return self.vector / self.weight


#: What one part keeps on the server between rounds.
Slots = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class State:
    """What the server carries from round to round: the weights, shape (P,) float32, and an algorithm's own `slots`.

    What stages and the downlink keep is in `others`, by owner. Only the server loop handles that: an algorithm makes
    a new state from weights and its own slots alone.

    >>> import torch
    >>> State(torch.zeros(3)).slots
    {}
    """

    weights: Tensor
    slots: Slots = field(default_factory=dict)
    others: Mapping[str, Slots] = field(default_factory=dict)


@dataclass(frozen=True)
class Schedule:
    """A number that may change with the round: ((first round, value), ...), starting at round 1.

    >>> Schedule(((1, 20.0), (100, 5.0))).at(150)
    5.0
    """

    steps: tuple[tuple[int, float], ...]

    def at(self, round: int) -> float:
        return [value for first, value in self.steps if first <= round][-1]

    @property
    def values(self) -> set[float]:
        return {value for _, value in self.steps}

    def __str__(self) -> str:
        first, *later = self.steps
        return ",".join([f"{first[1]:g}", *(f"{start}:{value:g}" for start, value in later)])


@dataclass(frozen=True)
class Work:
    """What a cohort is asked to do in one round (t counts from 1): E local epochs, batches of B, learning rate eta.

    >>> Work(round=1, epochs=5, batch=10, lr=0.1).lr
    0.1
    """

    round: int
    epochs: int
    batch: float
    lr: float
    #: Numbers that the server decides in each round, such as an adaptive clipping norm; they travel with the work.
    settings: Mapping[str, float] = field(default_factory=dict)


class Errands(ABC):
    """What an asynchronous algorithm asks a simulated world: how it goes with clients that it starts one by one."""

    #: How many clients are at work at the same time at most.
    most: int

    @abstractmethod
    def start(self, client: int, at: float, work: Work) -> tuple[float, bool] | None:
        """When a client that starts at a time is back, and whether with a report; None if it is not there then."""

    @abstractmethod
    def wait(self, at: float) -> tuple[float, Sequence[int]]:
        """When somebody is there again, from a time on at which nobody is at work, and who is to be started then."""

    @abstractmethod
    def end(self, at: float, staleness: Sequence[int]) -> None:
        """The algorithm has enough: what time it is, and by how many versions each model that came back was old."""


@dataclass(frozen=True)
class Cohort:
    """S_t, the clients that are asked in a round, drawn from a population of K.

    >>> Cohort([3, 1], population=100).clients
    [3, 1]
    """

    clients: Sequence[int]
    population: int
    #: What it cost to draw them, where candidates were sent the model and reported their losses.
    bytes_up: int = 0
    bytes_down: int = 0
    #: In a simulated world, how it goes with clients that are started one by one.
    errands: Errands | None = None


@dataclass(frozen=True)
class Part:
    """The clients of a round that train from the same `shared`, and what their sum counts for.

    >>> import torch
    >>> Part([3, 1], shared=torch.zeros(3)).scale
    1.0
    """

    cohort: Sequence[int]
    shared: Tensor
    scale: float = 1.0
    #: How many rounds ago `shared` was the newest.
    staleness: int = 0
    #: The last changes of `shared`, oldest first, for clients that hold an earlier one; the newest leads to this one.
    frames: Sequence[bytes] = ()
