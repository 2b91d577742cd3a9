"""FedBuff, asynchronous averaging with a buffer: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous
Aggregation", Algorithms 1 and 2.

    server:  clients are always at work, at most m = C K of them; each trains from the version it was given
             when K updates are in the buffer:  w_{t+1} = w_t + lr Σ_i s(τ_i) n_i Δ_i / Σ_i n_i,   s(τ) = 1 / √(1 + τ)
             τ_i: how many versions have passed since client i was given its own
    client:  as FedAvg

A round is one step of the server. Time is simulated: a client takes (1 - spread) + spread |z| with z ~ N(0, 1), which
for spread = 1 is half-normal, as in the paper's experiments. All updates that arrive at one moment are handled before
other clients are started, from the newest version. So with spread = 0 and K = m it is FedAvg, bit for bit. The paper
weights clients equally; here they are weighted by n_k, as in FedAvg.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedavg.algorithms.algorithm import PlanOptions
from fedavg.algorithms.fedavg import FedAvg
from fedavg.algorithms.settings import require
from fedavg.errors import PlanError
from fedavg.types import Errands, Part, State, Sum, Work


class Flight(NamedTuple):
    """A client at work: when it ends, its number, the version it was given. One that will drop out has the number
    -1 - k: the server does not learn of it before it ends."""

    end: float
    client: int
    version: int

    @property
    def who(self) -> int:
        return self.client if self.client >= 0 else -1 - self.client


@dataclass(frozen=True)
class _WithoutWorld(Errands):
    """Without a world: every client is there, reports, and takes (1 - spread) + spread |z|."""

    most: int
    spread: float
    rng: np.random.Generator

    def start(self, client: int, at: float, work: Work) -> tuple[float, bool]:
        return at + ((1 - self.spread) + self.spread * abs(float(self.rng.standard_normal()))), True

    def wait(self, at: float) -> tuple[float, Sequence[int]]:
        return at, ()

    def end(self, at: float, staleness: Sequence[int]) -> None:
        pass


def _started(client: int, at: float, work: Work, world: Errands) -> list[Flight]:
    """A client at work from now on; empty if it is not there."""
    found = world.start(client, at, work)
    return [Flight(found[0], client if found[1] else -1 - client, work.round - 1)] if found else []


@dataclass(frozen=True)
class FedBuff(FedAvg):
    """Asynchronous averaging with a buffer (Nguyen et al. 2022).

    >>> str(FedBuff(buffer=5))
    'fedbuff:5'
    """

    name = "fedbuff"
    asynchronous = True
    buffer: int = 10
    spread: float = 1.0
    lr: float = 1.0

    def __post_init__(self) -> None:
        require(self, "buffer", low=1)
        require(self, "spread", low=0, high=1)
        require(self, "lr", low=0, above=True)

    def check(self, plan: PlanOptions) -> None:
        if plan.world is not None and self.spread != FedBuff.spread:
            raise PlanError(
                f"algorithm: got spread={self.spread:g} in a world, whose devices say how long all take; leave it out"
            )

    def initial(self, weights: Tensor) -> State:
        return State(weights, _slots([], 0.0, {}))

    def assign(
        self,
        state: State,
        work: Work,
        cohort: Sequence[int],
        rng: np.random.Generator,
        errands: Errands | None = None,
    ) -> tuple[State, Sequence[Part]]:
        now = work.round - 1
        flights, clock, versions = _read(state)
        versions[now] = state.weights
        world = errands or _WithoutWorld(len(cohort), self.spread, rng)
        landed, flights, clock = self._fill(flights, clock, work, cohort, world)
        world.end(clock, [now - flight.version for flight in landed])
        parts = [
            Part(
                [f.client for f in landed if f.version == version],
                versions[version],
                (1 + now - version) ** -0.5,
                now - version,
            )
            for version in sorted({f.version for f in landed})
        ]
        return State(state.weights, _slots(flights, clock, versions)), parts

    def _fill(
        self, flights: list[Flight], clock: float, work: Work, cohort: Sequence[int], world: Errands
    ) -> tuple[list[Flight], list[Flight], float]:
        """Let time pass until the buffer is full: which clients landed, which are still at work, and the time.

        The cohort says which clients to start next.
        """
        at_work = {flight.who for flight in flights}
        waiting = deque(k for k in cohort if k not in at_work)
        landed: list[Flight] = []
        while len(landed) < self.buffer:
            while waiting and len(flights) < world.most:
                flights += _started(waiting.popleft(), clock, work, world)
            if not flights:
                clock, others = world.wait(clock)
                if not others:  # no client is left, and none will come
                    break
                waiting = deque(others)
                continue
            # Stable: of clients that end together, the first started comes first.
            flights.sort(key=lambda flight: flight.end)
            clock = flights[0].end
            arriving = [flight for flight in flights if flight.end == clock][: self.buffer - len(landed)]
            landed, flights = landed + [f for f in arriving if f.client >= 0], flights[len(arriving) :]
        return landed, flights, clock

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        return replace(state, weights=(state.weights.double() + self.lr * total.mean).float())


def _slots(flights: list[Flight], clock: float, versions: dict[int, Tensor]) -> dict[str, Tensor]:
    """What the server keeps: the clients at work, the time, and the versions that they were given."""
    needed = sorted({flight.version for flight in flights})
    return {
        "flights": torch.tensor(flights, dtype=torch.float64).view(-1, 3),
        "clock": torch.tensor([clock], dtype=torch.float64),
        **{f"version.{version}": versions[version] for version in needed},
    }


def _read(state: State) -> tuple[list[Flight], float, dict[int, Tensor]]:
    flights = [Flight(end, int(client), int(version)) for end, client, version in state.slots["flights"].tolist()]
    given = {name.removeprefix("version."): slot for name, slot in state.slots.items() if name.startswith("version.")}
    return flights, float(state.slots["clock"]), {int(version): weights for version, weights in given.items()}
