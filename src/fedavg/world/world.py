"""`World`: who is there at which hour of a simulated clock, in which group, and on what devices.

A world knows clients by number. It knows nothing about models, algorithms or where clients run.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedavg import seeds
from fedavg.errors import PlanError
from fedavg.specs import Pluggable
from fedavg.world.devices import Alike, Devices, Rates
from fedavg.world.presence import AlwaysThere, Intervals, Listed, Nightly, OnOff
from fedavg.world.trace import Trace, read_trace


class World(Pluggable, ABC):
    """Who is there when. A world of your own is a frozen dataclass of this class; `devices` is its last field.

    >>> from fedavg.world.presence import AlwaysThere
    >>> @dataclass(frozen=True)
    ... class EvenOnes(World):
    ...     devices: Devices = field(default_factory=Alike)
    ...
    ...     def groups(self, clients):
    ...         return np.arange(clients) % 2
    ...
    ...     def presence(self, clients, seed):
    ...         return AlwaysThere(clients)
    >>> EvenOnes().groups(3).tolist()
    [0, 1, 0]
    """

    kind = "world"
    devices: Devices

    @classmethod
    def registry(cls) -> Mapping[str, type["World"]]:
        return WORLDS

    @abstractmethod
    def presence(self, clients: int, seed: int) -> Intervals:
        """When each of K clients is there. Raises a PlanError if the world has fewer."""

    def groups(self, clients: int) -> np.ndarray:
        """The group of each client, shape (K,), int64 from 0; participation is reported by group."""
        return np.zeros(clients, np.int64)

    def rates(self, clients: int, seed: int) -> Rates:
        """What each device can do."""
        return self.devices.rates(clients, seeds.rng(seed, seeds.NONE, seeds.NONE, "devices"))

    @property
    def fingerprint(self) -> str:
        """A short digest of what its text does not say, such as the content of a file."""
        return ""


@dataclass(frozen=True)
class Always(World):
    """Every client is there all the time.

    >>> str(Always())
    'always'
    """

    devices: Devices = field(default_factory=Alike)

    def presence(self, clients: int, seed: int) -> Intervals:
        return AlwaysThere(clients)


@dataclass(frozen=True)
class Diurnal(World):
    """Clients are there once a day, from a local hour on, like phones that charge at night. Client k lives in time zone
    k mod `zones`; the zones are evenly spaced around the earth, and zone 0 is UTC. `spread` is the standard deviation,
    in hours, of both ends of a night. Zones are the groups.

    >>> str(Diurnal(zones=2, hours=10))
    'diurnal:2:hours=10'
    """

    zones: int = 4
    begin: float = 22.0
    hours: float = 8.0
    spread: float = 1.0
    devices: Devices = field(default_factory=Alike)

    def __post_init__(self) -> None:
        checks = {
            "zones": (self.zones, self.zones >= 1, "1 or more"),
            "begin": (self.begin, 0 <= self.begin < 24, "an hour from 0, below 24"),
            "hours": (self.hours, 0 < self.hours <= 23, "hours above 0, at most 23 (world always has no nights)"),
            "spread": (self.spread, 0 <= self.spread <= 6, "hours from 0 to 6"),
        }
        for name, (value, good, expected) in checks.items():
            if not good:
                raise PlanError(f"world diurnal: {name} is {value:g}; expected {expected}")

    def groups(self, clients: int) -> np.ndarray:
        if clients < self.zones:
            raise PlanError(
                f"world diurnal: {self.zones} zones for {clients} clients leave a zone without any; expected at most "
                f"{clients} zones"
            )
        return np.arange(clients) % self.zones

    def presence(self, clients: int, seed: int) -> Intervals:
        offset = self.groups(clients) * (24.0 / self.zones)
        return Nightly(offset, self.begin, self.hours, self.spread, seed)


@dataclass(frozen=True)
class Markov(World):
    """Each client comes and goes independently: there for `on` hours on average, then away for `off` hours.

    >>> str(Markov(on=0.5))
    'markov:0.5'
    """

    on: float = 1.0
    off: float = 3.0
    devices: Devices = field(default_factory=Alike)

    def __post_init__(self) -> None:
        for name, value in (("on", self.on), ("off", self.off)):
            if not 1e-3 <= value <= 1e6:
                raise PlanError(f"world markov: {name} is {value:g} hours; expected from 0.001 to a million")

    def presence(self, clients: int, seed: int) -> Intervals:
        return OnOff(clients, self.on * 3600, self.off * 3600, seed)


@dataclass(frozen=True)
class Traced(World):
    """From a file (docs/world.md): who is there from when to when, and on what device, if the file says so.

    The trace starts again when it is over, unless `repeat` is false. With `reuse`, more clients than it has go through
    it again: client k is the trace's k mod its number.

    >>> str(Traced("phones.jsonl", reuse=True))
    'trace:phones.jsonl:reuse=true'
    """

    path: str
    repeat: bool = True
    reuse: bool = False
    devices: Devices = field(default_factory=Alike)

    def presence(self, clients: int, seed: int) -> Intervals:
        trace, chosen = self._trace(), self._chosen(clients)
        count = np.diff(trace.first)[chosen]
        rows = np.concatenate([np.arange(trace.first[k], trace.first[k + 1]) for k in chosen] or [np.empty(0)])
        rows = rows.astype(np.int64)
        first = np.concatenate([[0], np.cumsum(count)])
        return Listed(first, trace.starts[rows], trace.ends[rows], trace.period_s if self.repeat else np.inf)

    def groups(self, clients: int) -> np.ndarray:
        own: np.ndarray = self._trace().groups[self._chosen(clients)]
        return own

    def rates(self, clients: int, seed: int) -> Rates:
        """The trace's own numbers, or the devices' where it has none."""
        drawn, trace, chosen = super().rates(clients, seed), self._trace(), self._chosen(clients)
        own = (trace.speed[chosen], trace.up[chosen], trace.down[chosen], trace.latency[chosen])
        others = (drawn.examples_s, drawn.up, drawn.down, drawn.latency_s)
        return Rates(*(np.where(np.isnan(a), b, a) for a, b in zip(own, others, strict=True)))

    @property
    def fingerprint(self) -> str:
        return self._trace().fingerprint

    def _trace(self) -> Trace:
        return read_trace(self.path)

    def _chosen(self, clients: int) -> np.ndarray:
        have = len(self._trace().first) - 1
        if clients > have and not self.reuse:
            raise PlanError(
                f"world trace: {self.path} has {have} clients, and the plan has {clients}; expected at most {have}, or "
                "reuse=true, by which several clients have the same trace"
            )
        return np.arange(clients) % have


WORLDS: dict[str, type[World]] = {"always": Always, "diurnal": Diurnal, "markov": Markov, "trace": Traced}
