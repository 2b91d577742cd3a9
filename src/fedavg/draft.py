"""`Draft`: the parts of a plan before they know of each other. What binds or checks them reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedavg.algorithms import Algorithm
from fedavg.attacks import Attack
from fedavg.codecs import Codec
from fedavg.cohorts import cohort_size
from fedavg.errors import PlanError
from fedavg.plan import Plan
from fedavg.robust import Defence
from fedavg.samplers import Sampler
from fedavg.stages import Stage
from fedavg.stages.stage import Mechanism
from fedavg.tasks import Task
from fedavg.types import Examples, Population

if TYPE_CHECKING:  # secure aggregation needs `cryptography`, which a plain simulation does not
    from fedavg.secagg.options import Masking


@dataclass(frozen=True)
class Draft:
    """The parts of a plan before they know of each other: what a part is bound to."""

    plan: Plan
    task: Task
    algorithm: Algorithm
    codec: Codec
    stages: tuple[Stage, ...]
    #: Who is asked in a round.
    sampler: Sampler
    secagg: "Masking | None"
    #: Who the clients are; None if any client may take part, so that their number is not known.
    population: Population | None
    #: What the server judges models on; None where it has nothing.
    test: Examples | None
    #: The rule over single updates; None: the weighted mean.
    defence: Defence | None = None
    #: How some clients lie; None: nobody does.
    attack: Attack | None = None

    @property
    def judged_by_server(self) -> bool:
        """True if the model is judged on the server's own test set."""
        return bool(self.test) if self.plan.evaluate == "auto" else "server" in self.plan.evaluate

    @property
    def judged_by_clients(self) -> bool:
        """True if the model is judged by clients, on what they hold out."""
        if self.plan.evaluate != "auto":
            return "clients" in self.plan.evaluate
        return not self.test and self.holds_out

    @property
    def holds_out(self) -> bool:
        """True if some client holds examples out of training, as far as is known."""
        if self.population is None or self.population.held_sizes is None:
            return self.plan.holdout > 0
        return bool(self.population.held_sizes.any())

    @property
    def clients(self) -> Population:
        """Who the clients are, for a part that cannot do without."""
        if self.population is None:
            raise PlanError("clients: the plan's stages need K, the number of clients; got none")
        return self.population

    @property
    def vectors_up(self) -> int:
        return self.algorithm.vectors_up

    @property
    def cohort_size(self) -> int:
        return cohort_size(self.plan.C, self.clients)

    def update_size(self, parameters: int) -> int:
        return update_size(self.algorithm, self.stages, parameters)

    @property
    def mechanism(self) -> Mechanism | None:
        """What makes the run private; None if nothing does."""
        return next((stage.mechanism for stage in self.stages if stage.mechanism), None)

    @property
    def noise_multiplier(self) -> float:
        """z, the noise on the sum over what one client can change it by; 0 if there is none."""
        return self.mechanism.multiplier if self.mechanism and self.mechanism.by != "each" else 0.0


def update_size(algorithm: Algorithm, stages: Sequence[Stage], parameters: int) -> int:
    """How many numbers an update has: the algorithm's vectors, and what stages append."""
    return parameters * algorithm.vectors_up + sum(stage.appends for stage in stages)
