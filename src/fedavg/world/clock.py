"""The simulated clock: a world, bound to the clients of a plan. It says who is there, how long an errand takes each
client, which clients of a cohort report, and what time it is then. It does not train: the sizes of messages are given.

All draws come from the seed, the round and the attempt, so that a clock that is set to a time continues exactly like
one that reached it by running.
"""

from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from fedavg import seeds
from fedavg.errors import FleetError, PlanError
from fedavg.world.closing import Closed, Closing, Fate, close
from fedavg.world.link import shared
from fedavg.world.presence import DAY_S, HOUR_S, PresentNow
from fedavg.world.world import World

#: How long a server waits for clients before the run ends.
HORIZON_S: Final = 14 * DAY_S


@dataclass(frozen=True)
class Errand:
    """What the clients that are asked in a round have to do; all of shape (N,): who they are, how many examples each
    trains on in all its epochs, and the bytes that it fetches and sends."""

    round: int
    attempt: int
    clients: np.ndarray
    examples: np.ndarray
    bytes_down: np.ndarray
    bytes_up: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """How an errand went. `seconds` is how long each client takes, or would have taken, shape (N,).

    `spent_s` are the seconds for which devices worked, `wasted_s` those that led to no report. `sent_up` and
    `sent_down` are bytes, partial if a transfer was cut off; `wasted_up` and `wasted_down` are those of clients that
    did not report.
    """

    opened: float
    closed: Closed
    seconds: np.ndarray
    spent_s: float
    wasted_s: float
    sent_up: int
    sent_down: int
    wasted_up: int
    wasted_down: int


class Clock:
    """The time of a run in a world. `now` is in seconds from the first midnight UTC."""

    def __init__(self, world: World, closing: Closing, clients: int, seed: int) -> None:
        self._world, self.closing, self._seed = world, closing, seed
        self.groups = world.groups(clients)
        self._rates = world.rates(clients, seed)
        self._check_rates(clients)
        self._attendance = PresentNow(world.presence(clients, seed))
        self.now = 0.0

    def _check_rates(self, clients: int) -> None:
        for name in ("examples_s", "up", "down", "latency_s"):
            values = getattr(self._rates, name)
            low = values >= 0 if name == "latency_s" else values > 0
            if values.shape != (clients,) or not (low & np.isfinite(values)).all():
                raise PlanError(
                    f"devices {self._world.devices}: {name} has shape {values.shape}, with values that are not finite "
                    f"numbers above 0 or not of shape ({clients},); expected one for each client"
                )

    def set(self, now: float) -> None:
        """Continue from a time."""
        self.now = now
        self._attendance.advance(now)

    def gather(self, able: np.ndarray, wanted: int) -> np.ndarray:
        """Wait until a round that wants this many reports can begin. Returns which of the `able` clients are there
        then; both have shape (K,), bool."""
        needed = min(self.closing.needed(wanted), int(np.count_nonzero(able)))
        at = self._attendance.when(max(needed, 1), able, self.now, HORIZON_S)
        if at is None:
            there = int(np.count_nonzero(self._attendance.there(self.now + HORIZON_S) & able))
            raise FleetError(
                f"world {self._world}: after {HORIZON_S / DAY_S:.0f} simulated days of waiting {there} clients with "
                f"data are there, and a round needs {needed}; expected as many at one time: use a smaller C, closing "
                "with needs=0.5, or a world in which more are there together"
            )
        self.now = at
        there = self._attendance.there(at) & able
        return np.asarray(there)

    def is_there(self, client: int, at: float) -> bool:
        return self._attendance.is_there(client, at)

    @property
    def there(self) -> np.ndarray:
        """Who is there now, shape (K,), bool."""
        return self._attendance.there(self.now)

    def run(self, errand: Errand, wanted: int) -> Outcome:
        """Send the clients on an errand, and let time pass until the round ends."""
        begin = self.now
        rng = seeds.rng(self._seed, errand.round, seeds.NONE, f"errands {errand.attempt}")
        fetched, trained, sent = self._phases(errand, begin, rng)
        lost = np.minimum(self._attendance.end[errand.clients], self._failures(begin, sent, rng))
        closed = close(self.closing, wanted, begin, sent, lost)
        self.set(closed.at)
        return _accounted(errand, begin, closed, (fetched, trained, sent), lost)

    def flight(self, round: int, client: int, at: float, work: tuple[float, float, float]) -> tuple[float, bool]:
        """One client that starts alone at a time: when it is back, and whether it then reports. `work` is what it
        trains on, fetches and sends."""
        self._attendance.is_there(client, at)  # moves on to an interval that ends later
        errand = Errand(round, 0, np.array([client]), *(np.array([value], np.float64) for value in work))
        rng = seeds.rng(self._seed, round, client, "flight")
        sent = self._phases(errand, at, rng)[2]
        lost = np.minimum(self._attendance.end[[client]], self._failures(at, sent, rng))
        return float(min(sent[0], lost[0])), bool(sent[0] <= lost[0])

    def _phases(self, errand: Errand, begin: float, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """When each client has the model, has trained and has sent its report, shape (N,) each."""
        k, devices, rates = errand.clients, self._world.devices, self._rates
        wait = begin + rates.latency_s[k]
        fetched = shared(wait, errand.bytes_down, rates.down[k], devices.server_out * 1e6)
        slower = np.exp(devices.jitter * rng.standard_normal(len(k))) if devices.jitter else 1.0
        trained = fetched + slower * errand.examples / rates.examples_s[k]
        sent = shared(trained + rates.latency_s[k], errand.bytes_up, rates.up[k], devices.server_in * 1e6)
        return fetched, trained, sent

    def _failures(self, begin: float, sent: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """When each client fails in the middle of its work; infinity for those that do not."""
        if not self._world.devices.dropout:
            return np.full(len(sent), inf)
        fails, place = rng.random((2, len(sent)))
        return np.where(fails < self._world.devices.dropout, begin + place * (sent - begin), inf)


def _accounted(
    errand: Errand, begin: float, closed: Closed, phases: tuple[np.ndarray, ...], lost: np.ndarray
) -> Outcome:
    fetched, trained, sent = phases
    until = np.minimum(np.minimum(sent, lost), closed.at)
    down = errand.bytes_down * _part(until, np.full(len(sent), begin), fetched)
    up = errand.bytes_up * _part(until, trained, sent)
    idle = ~closed.reported
    return Outcome(
        opened=begin,
        closed=closed,
        seconds=sent - begin,
        spent_s=float((until - begin).sum()),
        wasted_s=float((until - begin)[idle].sum()),
        sent_up=int(np.floor(up).sum()),
        sent_down=int(np.floor(down).sum()),
        wasted_up=int(np.floor(up[idle]).sum()),
        wasted_down=int(np.floor(down[idle]).sum()),
    )


def _part(until: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How much of a transfer from `begin` to `end` is done at `until`, from 0 to 1."""
    whole = np.maximum(end - begin, 1e-12)
    return np.where(until >= end, 1.0, np.clip((until - begin) / whole, 0.0, 1.0))


def hours(seconds: float) -> str:
    """A time of the clock as people read it.

    >>> hours(93_780)
    'day 2, 02:03'
    """
    day, rest = divmod(seconds, DAY_S)
    return f"day {int(day) + 1}, {int(rest // HOUR_S):02}:{int(rest % HOUR_S // 60):02}"


def fates(outcome: Outcome) -> dict[str, int]:
    """How many clients had which outcome."""
    return {fate.name.lower(): int(np.count_nonzero(outcome.closed.fates == fate)) for fate in Fate}
