"""`Fleet`: where clients run. The server loop asks it for the sum over a cohort and for an evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from pathlib import Path
from typing import Any

from torch import Tensor

from fedavg.cohorts import Among
from fedavg.engine.trainer import Engine
from fedavg.errors import FleetError
from fedavg.fleets.attendance import Attendance, joined
from fedavg.metrics import add_up
from fedavg.metrics.spread import OnClients
from fedavg.plan import Plan
from fedavg.setup import Setup
from fedavg.specs import Pluggable
from fedavg.types import Cohort, Examples, Part, Population, Slots, Split, Sum, Update, Work


@dataclass(frozen=True)
class CohortResult:
    """The exact weighted sum over a cohort, and its cost."""

    total: Sum
    bytes_up: int
    #: The largest message of one client: clients send in parallel, so it decides the simulated clock.
    largest_up: int
    bytes_down: int
    #: Numbers that secure aggregation had to cut to its clip range, over all clients.
    saturated: int = 0
    #: The most releases that any client has made, this round's included; None: one a round.
    releases: int | None = None
    #: If the setup asks for `single_updates`: each client's update, in memory; `total` then has no vector.
    singles: Mapping[int, Update] | None = None
    #: The training loss of each client, if the plan's sampler uses it.
    losses: Mapping[int, float] = field(default_factory=dict)
    #: How many seconds each client took, if devices are real and the sampler uses it.
    seconds: Mapping[int, float] = field(default_factory=dict)
    #: How the round went in the plan's world (`fedavg.world.report.ClockRow`); None without one.
    world: Mapping[str, Any] | None = None
    #: Who took part; None if the fleet does not say.
    attendance: Attendance | None = None


def join(results: Sequence[CohortResult], scales: Sequence[float]) -> CohortResult:
    """The parts of a round as one: sums are added by their scales, in the order given; n_k still counts whole."""
    if list(scales) == [1.0]:
        return results[0]
    first, *others = (scale * result.total.vector for scale, result in zip(scales, results, strict=True))
    totals = [result.total for result in results]
    weight = fsum(total.weight for total in totals)
    measured = add_up([{name: sums.tolist() for name, sums in total.sums.items()} for total in totals])
    return CohortResult(
        total=Sum(sum(others, start=first), weight, sum(total.count for total in totals), sums=measured),
        bytes_up=sum(result.bytes_up for result in results),
        largest_up=max(result.largest_up for result in results),
        bytes_down=sum(result.bytes_down for result in results),
        losses={client: loss for result in results for client, loss in result.losses.items()},
        attendance=joined([result.attendance for result in results], scales),
    )


@dataclass(frozen=True)
class Abandoned:
    """An abandoned attempt at a round: nothing of it counts, and another cohort is drawn."""

    reason: str


class Fleet(Pluggable, ABC):
    """Where clients run. It holds its clients between rounds; the server loop closes it at the end.

    Where clients run does not change what they compute, so a fleet is not part of a plan: `run`, `resume` and `train`
    take it as an object, a name or an import name. Your own fleet is often a local one with a change:

    >>> from fedavg import LocalFleet, Plan, run
    >>> class Told(LocalFleet):
    ...     def train(self, cohort, work, parts):
    ...         print(f"round {work.round}: {len(cohort.clients)} clients")
    ...         return super().train(cohort, work, parts)
    >>> _ = run(Plan(data="mnist", C=0.02, rounds=1, workers=1), fleet=Told())
    round 1: 2 clients
    """

    kind = "fleet"
    #: True if it can return single updates, kept only in memory, as reducers need them.
    gives_singles: bool = False
    #: How clients train, and why; known after `start`.
    engine: Engine
    #: The fingerprint of the weights that are frozen, empty if none are; known after `start`.
    frozen: str = ""
    #: What must be the same for a run to be resumed; known after `open`.
    fingerprint: str
    #: What the server judges models on; None if it has no data. Known after `open`.
    test: Examples | None
    #: True if its clients are simulated: their work takes no simulated time, so that a world can set the clock.
    simulates: bool = False

    @classmethod
    def registry(cls) -> Mapping[str, type["Fleet"]]:
        from fedavg.fleets import FLEETS

        return FLEETS

    @abstractmethod
    def open(self, plan: Plan) -> Population | None:
        """Find the clients that the plan is for; None if any client may take part."""

    def keep_states_in(self, directory: Path) -> None:
        """Keep in a run's directory what clients carry from round to round, so that the run can be resumed.

        Called between `open` and `start`, for a recorded run whose clients carry anything.
        """
        raise FleetError(
            f"clients keep something between rounds here, and {type(self).__name__} has no place for it that a resumed "
            f"run would find; expected `keep_states_in`: define it, or run without a run directory"
        )

    def flush_states(self) -> None:
        """Write what clients keep to the directory of `keep_states_in`, if it is not there yet: a checkpoint follows.

        A recorded run calls this before its first round and before every checkpoint, the last time after `close`. A
        fleet that writes at once has nothing to do; a fleet around another may leave it out: the inner one then writes
        at once.
        """

    @abstractmethod
    def start(self, setup: Setup) -> Tensor:
        """Get ready to train; returns the initial weights, shape (P,)."""

    @abstractmethod
    def draw(self, round: int, weights: Tensor) -> Cohort:
        """Who is asked in this round; after an abandoned attempt, who is asked next. Losses are those of `weights`."""

    def draw_among(self, round: int, weights: Tensor, among: Among) -> Cohort:
        """The same, if a world says who can be asked. Only for a fleet that simulates."""
        raise FleetError(f"{type(self).__name__} cannot draw a cohort among some of its clients; expected `draw_among`")

    def population_at(self, round: int) -> Population:
        """The clients as they are in a round: their data may change. Only for a fleet that simulates."""
        raise FleetError(f"{type(self).__name__} does not know its clients round by round; expected `population_at`")

    @abstractmethod
    def train(self, cohort: Cohort, work: Work, parts: Sequence[Part]) -> CohortResult | Abandoned:
        """Have the clients do the round's work, each from what its part shares, and add up their updates."""

    def reject(self, work: Work, reason: str) -> bool:
        """The result of the last attempt cannot be used. True if another attempt may do better.

        Simulated clients would do the same again; real ones may have sent what spoiled it.
        """
        return False

    @abstractmethod
    def evaluate(self, weights: Tensor, on: Split) -> dict[str, float]:
        """The task's metrics of the weights on a set that the server can see."""

    @abstractmethod
    def evaluate_on_clients(self, weights: Tensor, round: int) -> OnClients | None:
        """The same on the clients' held-out examples, judged by the clients; as many of them as the plan says.

        None if too few answer.
        """

    def remember(self) -> Slots:
        """What it needs to continue exactly after a round; it becomes part of the server's state."""
        return {}

    def recall(self, slots: Slots) -> None:
        """Continue from what was remembered after the last round; empty before round 1. Called after `start`."""

    @abstractmethod
    def close(self) -> None:
        """Release all processes and memory."""
