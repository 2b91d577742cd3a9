"""How fast devices are, how often they fail, and the bandwidth of the server's own line."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf, isfinite

import numpy as np

from fedavg.errors import PlanError
from fedavg.specs import Pluggable


@dataclass(frozen=True)
class Rates:
    """What each of K devices can do; all of shape (K,).

    `examples_s` is how many examples of the plan's task a device trains on per second, `up` and `down` are bytes per
    second, `latency_s` is the time before the first byte of a message arrives.

    >>> Rates(*np.ones((4, 2))).up.tolist()
    [1.0, 1.0]
    """

    examples_s: np.ndarray
    up: np.ndarray
    down: np.ndarray
    latency_s: np.ndarray


class Devices(Pluggable, ABC):
    """A population of devices. Your own is a frozen dataclass of this class:

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Halves(Devices):
    ...     ratio: float = 4.0
    ...
    ...     def rates(self, clients, rng):
    ...         slow = np.where(np.arange(clients) % 2, self.ratio, 1.0)
    ...         return Rates(100 / slow, 1e6 / slow, 5e6 / slow, np.full(clients, 0.1))
    >>> Halves().rates(2, np.random.default_rng(0)).examples_s.tolist()
    [100.0, 25.0]
    """

    kind = "devices"
    #: The chance that a device fails in the middle of a round, at any moment of its work with equal probability.
    dropout: float = 0.0
    #: The standard deviation of the logarithm of the time that the same work takes from one round to the next.
    jitter: float = 0.0
    #: The total bandwidth of the server's line, MB/s; clients that send or fetch at the same time share it.
    server_in: float = inf
    server_out: float = inf

    @classmethod
    def registry(cls) -> Mapping[str, type["Devices"]]:
        return DEVICES

    @abstractmethod
    def rates(self, clients: int, rng: np.random.Generator) -> Rates:
        """What each of K devices can do."""


@dataclass(frozen=True)
class Alike(Devices):
    """All alike: examples a second, MB/s up and down, and seconds of latency.

    >>> str(Alike(speed=50))
    'alike:50'
    """

    speed: float = 100.0
    up: float = 1.0
    down: float = 1.0
    latency: float = 0.0
    dropout: float = 0.0
    jitter: float = 0.0
    server_in: float = inf
    server_out: float = inf

    def __post_init__(self) -> None:
        _check(self)

    def rates(self, clients: int, rng: np.random.Generator) -> Rates:
        return Rates(*(np.full(clients, value) for value in (self.speed, self.up * 1e6, self.down * 1e6, self.latency)))


@dataclass(frozen=True)
class LogNormal(Devices):
    """Speeds and bandwidths are log-normal: the settings are medians, `spread` the standard deviation of the logarithm.

    With 0.8 one device of six is 2.2 times as slow as the median or slower, and one of forty 5 times. A device draws
    its compute speed and its line independently; up and down go together.

    >>> str(LogNormal(spread=0.5))
    'lognormal:spread=0.5'
    """

    speed: float = 100.0
    up: float = 1.0
    down: float = 5.0
    latency: float = 0.1
    spread: float = 0.8
    dropout: float = 0.0
    jitter: float = 0.1
    server_in: float = inf
    server_out: float = inf

    def __post_init__(self) -> None:
        _check(self)

    def rates(self, clients: int, rng: np.random.Generator) -> Rates:
        compute, line = np.exp(self.spread * rng.standard_normal((2, clients)))
        return Rates(self.speed * compute, self.up * 1e6 * line, self.down * 1e6 * line, self.latency / line)


DEVICES: dict[str, type[Devices]] = {"alike": Alike, "lognormal": LogNormal}

#: What each setting may be: the least, the most, and whether the least itself is allowed.
_RANGES = {
    "speed": (0, inf, False),
    "up": (0, inf, False),
    "down": (0, inf, False),
    "latency": (0, inf, True),
    "spread": (0, 5, True),
    "dropout": (0, 1, True),
    "jitter": (0, 5, True),
    "server_in": (0, inf, False),
    "server_out": (0, inf, False),
}


def _check(devices: Devices) -> None:
    name = next(name for name, kind in DEVICES.items() if kind is type(devices))
    for spec in fields(devices):  # type: ignore[arg-type]
        value, (low, high, allowed) = getattr(devices, spec.name), _RANGES[spec.name]
        endless = spec.name.startswith("server_") and value == inf
        if not (endless or (isfinite(value) and low <= value <= high and (allowed or value > low))):
            expected = f"{'from' if allowed else 'above'} {low:g}" + (f" to {high:g}" if isfinite(high) else "")
            raise PlanError(f"devices {name}: {spec.name} is {value:g}; expected a number {expected}")
