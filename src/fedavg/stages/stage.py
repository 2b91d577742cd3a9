"""`Stage`: a step around the sum. On the client it changes the update before it is sent, on the server the sum."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fedavg.errors import PlanError
from fedavg.specs import Pluggable
from fedavg.tasks.task import Task
from fedavg.types import Population, Slots, Sum, Update, Work


@dataclass(frozen=True)
class Mechanism:
    """How a stage makes a run differentially private: what the ledger charges for."""

    name: str
    #: z, the standard deviation of the noise over the most that one client can change the sum.
    multiplier: float
    #: Who adds the noise: the server, the clients together, or each client for itself.
    by: Literal["server", "clients", "each"]
    #: Noise in multiples of 2^-bits; 0 for continuous noise.
    bits: int = 0


class Whole(Protocol):
    """What a stage may know about the plan that it is part of."""

    @property
    def task(self) -> Task: ...

    @property
    def stages(self) -> tuple["Stage", ...]: ...

    @property
    def vectors_up(self) -> int:
        """How many vectors of the model's size an update has, end to end."""

    @property
    def population(self) -> Population | None:
        """Who the clients are; None if any client may take part."""

    @property
    def clients(self) -> Population:
        """The same, for a stage that needs it; PlanError if it is not known."""

    @property
    def cohort_size(self) -> int: ...

    @property
    def noise_multiplier(self) -> float:
        """z, the noise on the sum over the most that one client can change it; 0 if there is none."""


class Stage(Pluggable):
    """Clients apply a plan's stages in order, the server in reverse; each draws from the generator it is given.

    A stage that adapts keeps its numbers on the server, and sends clients the round's numbers through `settings`.

    >>> import torch
    >>> from dataclasses import dataclass, replace
    >>> @dataclass(frozen=True)
    ... class Bounded(Stage):
    ...     largest: float
    ...
    ...     def on_client(self, update, work, rng):
    ...         return replace(update, vector=update.vector.clamp(-self.largest, self.largest))
    >>> work = Work(round=1, epochs=1, batch=10, lr=0.1)
    >>> Bounded(0.5).on_client(Update(torch.tensor([2.0, -0.25]), weight=1), work, np.random.default_rng(0)).vector
    tensor([ 0.5000, -0.2500])
    """

    kind = "stages"
    #: True if every update has a bounded norm after this stage: `sensitivity` gives the bound.
    bounds: bool = False
    #: True if no client counts for more than 1 after this stage.
    caps_weight: bool = False
    #: True if the stage sets every client's weight to 1.
    weighs_alike: bool = False
    #: True if the stage learns from the clients of each round.
    adapts: bool = False
    #: How many numbers the stage appends to every update. It removes them from the sum again.
    appends: int = 0
    #: True if what leaves the client may exceed the bounds that earlier stages gave it.
    exceeds_bounds: bool = False
    #: True if clients do not send their metrics, because these are not noised.
    hides_metrics: bool = False

    @classmethod
    def registry(cls) -> Mapping[str, type["Stage"]]:
        from fedavg.stages import STAGES

        return STAGES

    @property
    def mechanism(self) -> Mechanism | None:
        """How this stage makes a run private; None if it does not."""
        return None

    def sensitivity(self, work: Work) -> float:
        """The L2 norm that no update exceeds after this stage, including what it appends; for a stage that `bounds`."""
        raise NotImplementedError(f"stage {self} gives no bound")

    def share(self, work: Work, size: int) -> float:
        """The standard deviation of the noise that one client adds to its weighted update of this many numbers.

        For a stage whose noise clients add together (`mechanism.by` is "clients"); so is `least`.
        """
        raise PlanError(
            f"stage '{self}' says that clients add its noise together; expected methods `share` and `least`"
        )

    @property
    def least(self) -> int:
        """The fewest clients whose shares together make up the whole noise."""
        raise PlanError(
            f"stage '{self}' says that clients add its noise together; expected methods `share` and `least`"
        )

    def held_within(self, least: float, largest: float) -> "Stage":
        """This stage with its bound, if it adapts, kept between `least` and `largest` times the first one."""
        return self

    def bind(self, whole: Whole) -> "Stage":
        """This stage with what it needs to know about the plan: the model's layout, the cohort, other stages."""
        return self

    def on_client(self, update: Update, work: Work, rng: np.random.Generator) -> Update:
        """What the client sends."""
        return update

    def on_arrival(self, update: Update, work: Work) -> Update:
        """What is added to the sum. Bounds are enforced again: a codec may lengthen an update, and a client may lie."""
        return update

    def on_sum(self, total: Sum, work: Work, rng: np.random.Generator) -> Sum:
        """What the server half of the algorithm sees."""
        return total

    def initial(self) -> Slots:
        """What this stage keeps on the server, before round 1."""
        return {}

    def settings(self, slots: Slots) -> Mapping[str, float]:
        """What clients get for the round; they find it in `work.settings`."""
        return {}

    def after(self, slots: Slots, total: Sum, work: Work) -> Slots:
        """What this stage keeps after a round, with what it learned from the sum."""
        return slots
