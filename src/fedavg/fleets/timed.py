"""A fleet of simulated clients in a world: the same fleet under a simulated clock.

It asks only clients that are available, counts only those that report in time, and keeps the time. The inner fleet
decides where clients run. Everything but training is decided first: a client that would not count is not trained.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from fedavg.codecs import make_codec
from fedavg.cohorts import Among, cohort_size
from fedavg.errors import FleetError, PlanError
from fedavg.fleets.fleet import Abandoned, CohortResult, Fleet
from fedavg.metrics.spread import OnClients
from fedavg.plan import Plan
from fedavg.samplers.memory import CohortSeen, Memory, from_slots, learned, to_slots
from fedavg.setup import Setup
from fedavg.types import Cohort, Errands, Part, Population, Slots, Split, Work
from fedavg.world import make_closing, make_world
from fedavg.world.clock import Clock, Errand, Outcome, hours
from fedavg.world.closing import Fate
from fedavg.world.report import ClockRow, row_of_flights, row_of_round

log = logging.getLogger("fedavg.run")

#: Abandoned attempts at one round after which a run ends.
MOST_ATTEMPTS: Final = 50
#: The name of the slot that remembers the time.
TIME: Final = "time"


def in_world(fleet: Fleet, setup: Setup) -> Fleet:
    """The fleet in the plan's world; the fleet itself if the plan has none."""
    if setup.plan.world is None:
        return fleet
    if not fleet.simulates:
        raise PlanError(
            f"world: got '{setup.plan.world}', but clients of {type(fleet).__name__} are not simulated: they come and "
            "go by themselves; expected no world, or the fleet 'local'"
        )
    return TimedFleet(fleet)


@final
class TimedFleet(Fleet):
    """A simulated fleet in the world of its plan."""

    def __init__(self, inner: Fleet) -> None:
        self._inner = inner
        self.gives_singles = inner.gives_singles
        self._attempt = 0
        #: What abandoned attempts at this round have cost, and why they were abandoned.
        self._lost: list[ClockRow] = []

    def open(self, plan: Plan) -> Population | None:
        raise AssertionError("the fleet inside has been opened")

    def keep_states_in(self, directory: Path) -> None:
        self._inner.keep_states_in(directory)

    def flush_states(self) -> None:
        self._inner.flush_states()

    def start(self, setup: Setup) -> Tensor:
        self._setup, plan = setup, setup.plan
        assert setup.population, "who simulates clients knows them"
        self._clock, first = self._new_clock(setup, setup.population), self._clients(1)
        if not setup.algorithm.asynchronous:  # a world in which no round can begin is refused before round 1
            self._new_clock(setup, setup.population).gather(_able(first), cohort_size(plan.C, first))
        self._memory = Memory.of_nothing(setup.population.count)
        initial = self._inner.start(setup)
        self.engine, self.frozen = self._inner.engine, self._inner.frozen
        self._bytes_down = make_codec("float32").max_bytes(len(initial) * setup.algorithm.vectors_down)
        self._bytes_up = setup.codec.frame_bytes(setup.update_size(len(initial)))
        return initial

    def _new_clock(self, setup: Setup, population: Population) -> Clock:
        plan = setup.plan
        assert plan.world is not None
        return Clock(make_world(plan.world), make_closing(plan.closing), population.count, plan.seed)

    def recall(self, slots: Slots) -> None:
        if slots:
            self._clock.set(float(slots[TIME]))
            self._memory = from_slots(slots)

    def remember(self) -> Slots:
        return {TIME: torch.tensor([self._clock.now], dtype=torch.float64), **to_slots(self._memory)}

    def draw(self, round: int, weights: Tensor) -> Cohort:
        """A cohort of available clients, as soon as there are enough."""
        population, began = self._clients(round), self._clock.now
        self._wanted = cohort_size(self._setup.plan.C, population)
        if not self._setup.algorithm.asynchronous:
            self._there = self._clock.gather(_able(population), self._wanted)
            self._waited = self._clock.now - began
            return self._drawn(round, weights)
        self._there, self._waited = self._clock.there & _able(population), 0.0
        self._flights = Flights(self, round, weights, self._wanted)
        cohort = self._drawn(round, weights) if self._there.any() else Cohort([], population.count)
        return replace(cohort, errands=self._flights)

    def _drawn(self, round: int, weights: Tensor) -> Cohort:
        """The clients that the sampler picks of those available."""
        population = self._clients(round)
        present = Population(population.count, np.where(self._there, _sizes(population), 0))
        size = self._wanted if self._setup.algorithm.asynchronous else self._clock.closing.asked(self._wanted)
        return self._inner.draw_among(round, weights, Among(present, size, self._attempt, self._memory))

    def _clients(self, round: int) -> Population:
        return self._inner.population_at(round)

    def train(self, cohort: Cohort, work: Work, parts: Sequence[Part]) -> CohortResult | Abandoned:
        if self._setup.algorithm.asynchronous:
            return self._landed(cohort, work, parts)
        asked = np.array(cohort.clients, np.int64)
        errand = self._errand(work, asked)
        outcome = self._clock.run(errand, self._wanted)
        row = row_of_round(outcome, errand, self._clock.groups, self._there, self._waited)
        if outcome.closed.reason:
            return self._abandoned(work, asked, outcome, row)
        counted = frozenset(asked[outcome.closed.reported].tolist())
        reporting = [replace(part, cohort=[k for k in part.cohort if k in counted]) for part in parts]
        result = self._trained(cohort, work, reporting)
        self._learn(work, asked, outcome, result)
        return self._closed(_attended(result, asked, outcome), row)

    def _errand(self, work: Work, clients: np.ndarray) -> Errand:
        sizes = _sizes(self._clients(work.round))
        shape = len(clients)
        down, up = np.full(shape, float(self._bytes_down)), np.full(shape, float(self._sent))
        return Errand(work.round, self._attempt, clients, work.epochs * sizes[clients].astype(np.float64), down, up)

    @property
    def _sent(self) -> int:
        assert self._bytes_up is not None, "refused before round 1"
        return self._bytes_up

    def _trained(self, cohort: Cohort, work: Work, parts: Sequence[Part]) -> CohortResult:
        result = self._inner.train(cohort, work, parts)
        assert isinstance(result, CohortResult), "simulated clients answer"
        if result.largest_up not in (0, self._sent):
            raise FleetError(
                f"codec {self._setup.plan.codec} made a frame of {result.largest_up} bytes; expected {self._sent}, as "
                "it declares (frame_bytes): the clock relied on it"
            )
        return result

    def _abandoned(self, work: Work, asked: np.ndarray, outcome: Outcome, row: ClockRow) -> Abandoned:
        """Time and work were spent in vain; other clients are asked."""
        reason = f"{hours(self._clock.now)}: {outcome.closed.reason}"
        log.warning("round %d, attempt %d is abandoned on %s", work.round, self._attempt + 1, reason)
        self._lost.append(replace(row, abandoned=(reason,)))
        self._learn(work, asked, outcome, None)
        self._attempt += 1
        if self._attempt >= MOST_ATTEMPTS:
            raise FleetError(
                f"round {work.round} was abandoned {self._attempt} times, the last time on {reason}; expected one that "
                "comes together: use a later deadline, a lower minimum, or a world in which clients stay longer"
            )
        return Abandoned(reason)

    def _learn(self, work: Work, asked: np.ndarray, outcome: Outcome, result: CohortResult | None) -> None:
        losses = np.array([result.losses.get(int(k), np.nan) if result else np.nan for k in asked], np.float64)
        reported = outcome.closed.reported if result else np.zeros(len(asked), bool)
        seen = CohortSeen(work.round, self._there, asked, reported, losses, outcome.seconds)
        self._memory = learned(self._memory, seen)

    def _closed(self, result: CohortResult, row: ClockRow) -> CohortResult:
        """The result with everything that the round cost, including abandoned attempts."""
        whole = row.with_lost(self._lost)
        self._lost, self._attempt = [], 0
        return replace(
            result,
            bytes_up=result.bytes_up + whole.wasted_up,
            bytes_down=result.bytes_down + whole.wasted_down,
            world=whole.to_dict(),
        )

    def _landed(self, cohort: Cohort, work: Work, parts: Sequence[Part]) -> CohortResult:
        """The clients that came back while the server waited for its buffer to fill."""
        flights, began = self._flights, self._clock.now
        self._clock.set(flights.ended)
        result = self._trained(cohort, work, parts)
        clients = np.array([k for part in parts for k in part.cohort], np.int64)
        row = row_of_flights(
            (began, self._clock.now), flights.counts, clients, self._clock.groups, self._there,
            (self._bytes_up or 0, self._bytes_down),
        )  # fmt: skip
        losses = np.array([result.losses.get(int(k), np.nan) for k in clients], np.float64)
        everyone = np.ones(len(clients), bool)
        seen = CohortSeen(work.round, self._there, clients, everyone, losses, np.full(len(clients), np.nan))
        self._memory = learned(self._memory, seen)
        return self._closed(result, row)

    def flight(self, work: tuple[int, int], client: int, at: float) -> tuple[float, bool] | None:
        """When a client that starts at `at` is back, and whether it then reports; None if it is unavailable."""
        round, epochs = work
        sizes = _sizes(self._clients(round))
        if not sizes[client] or not self._clock.is_there(client, at):
            return None
        return self._clock.flight(round, client, at, (epochs * float(sizes[client]), self._bytes_down, self._sent))

    def redrawn(self, round: int, weights: Tensor, at: float) -> tuple[float, Sequence[int]]:
        """When a client is available again, and whom the sampler picks then."""
        self._clock.set(at)
        self._there = self._clock.gather(_able(self._clients(round)), 1)
        self._attempt += 1
        return self._clock.now, self._drawn(round, weights).clients

    def evaluate(self, weights: Tensor, on: Split) -> dict[str, float]:
        return self._inner.evaluate(weights, on)

    def evaluate_on_clients(self, weights: Tensor, round: int) -> OnClients | None:
        return self._inner.evaluate_on_clients(weights, round)

    def close(self) -> None:
        self._inner.close()


def _attended(result: CohortResult, asked: np.ndarray, outcome: Outcome) -> CohortResult:
    """The result with the clients that were asked and did not count."""
    if not result.attendance:
        return result
    fates = {fate.name.lower(): asked[outcome.closed.fates == fate].tolist() for fate in (Fate.LATE, Fate.DROPPED)}
    missing = {name: clients for name, clients in fates.items() if clients}
    return replace(result, attendance=replace(result.attendance, asked=len(asked), missing=missing))


def _sizes(population: Population) -> np.ndarray:
    assert population.sizes is not None, "who simulates clients knows what they have"
    return population.sizes


def _able(population: Population) -> np.ndarray:
    mask: np.ndarray = _sizes(population) > 0
    return mask


@final
class Flights(Errands):
    """What an asynchronous algorithm learns about the world while it fills its buffer."""

    def __init__(self, fleet: TimedFleet, round: int, weights: Tensor, most: int) -> None:
        self._fleet, self._round, self._weights, self.most = fleet, round, weights, most
        self.ended = 0.0
        self.counts: dict[str, Any] = {"asked": 0, "dropped": 0, "spent_s": 0.0, "wasted_s": 0.0, "staleness": []}

    def start(self, client: int, at: float, work: Work) -> tuple[float, bool] | None:
        found = self._fleet.flight((self._round, work.epochs), client, at)
        if found:
            end, arrives = found
            self.counts["asked"] += 1
            self.counts["spent_s"] += end - at
            if not arrives:
                self.counts["dropped"] += 1
                self.counts["wasted_s"] += end - at
        return found

    def wait(self, at: float) -> tuple[float, Sequence[int]]:
        return self._fleet.redrawn(self._round, self._weights, at)

    def end(self, at: float, staleness: Sequence[int]) -> None:
        self.ended, self.counts["staleness"] = at, list(staleness)
