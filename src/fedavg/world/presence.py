"""When clients are there: for each client a list of intervals, drawn or read, one after another.

Pure logic on arrays over all K clients. Times are seconds of the simulated clock, which starts at 0 (midnight UTC). An
interval depends only on the seed, the client and its place in the list, never on when it was read: a resumed run moves
forward to its time and finds the same intervals.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import Final

import numpy as np

from fedavg import seeds

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
#: The least time between two intervals of a client, so that they stay separate.
GAP_S: Final = 60.0
#: Draws for all clients are kept for this many places in the list: 8 bytes a client each.
KEPT: Final = 24

#: Starts and ends, each of shape (N,).
Spans = tuple[np.ndarray, np.ndarray]


class Intervals(ABC):
    """The intervals [start, end) of K clients, in rising order for each."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    @abstractmethod
    def spans(self, clients: np.ndarray, turns: np.ndarray, ends: np.ndarray) -> Spans:
        """The interval with number `turns` (from 0) of each of these clients, after one that ended at `ends`.

        All of shape (N,). A client that never returns has the interval [inf, inf).
        """


class AlwaysThere(Intervals):
    def spans(self, clients: np.ndarray, turns: np.ndarray, ends: np.ndarray) -> Spans:
        return np.zeros(len(clients)), np.full(len(clients), inf)


class Nightly(Intervals):
    """Once a day, from a local hour on for some hours, each with its own spread every day. Shape of `offset_h`:
    (K,), how many hours the client's clock is ahead of UTC."""

    def __init__(self, offset_h: np.ndarray, begin_h: float, hours: float, spread_h: float, seed: int) -> None:
        super().__init__(len(offset_h))
        self._first = (begin_h - offset_h) * HOUR_S
        self._length, self._spread = hours * HOUR_S, spread_h * HOUR_S
        self._draws = _Draws(lambda turn: _normal(seed, turn, self.clients))

    def spans(self, clients: np.ndarray, turns: np.ndarray, ends: np.ndarray) -> Spans:
        # The first night may have begun two days before the clock did: in the east, and with a large spread.
        begin = self._first[clients] + (turns - 2) * DAY_S
        early, late = self._draws.of(clients, turns)
        start = np.maximum(begin + self._spread * early, ends + GAP_S)
        return start, np.maximum(begin + self._length + self._spread * late, start + GAP_S)


class OnOff(Intervals):
    """A Markov chain in continuous time: there for an exponential time with mean `on_s`, then away for `off_s`."""

    def __init__(self, clients: int, on_s: float, off_s: float, seed: int) -> None:
        super().__init__(clients)
        self._on, self._off = on_s, off_s
        self._there_at_first = seeds.rng(seed, seeds.NONE, seeds.NONE, "there at first").random(clients) < on_s / (
            on_s + off_s
        )
        self._draws = _Draws(lambda turn: _exponential(seed, turn, clients))

    def spans(self, clients: np.ndarray, turns: np.ndarray, ends: np.ndarray) -> Spans:
        away, there = self._draws.of(clients, turns)
        at_once = (turns == 0) & self._there_at_first[clients]
        start = np.where(at_once, 0.0, np.maximum(ends, 0.0) + self._off * away)
        return start, start + np.maximum(self._on * there, 1e-3)


class Listed(Intervals):
    """Intervals that were read. Those of client k are the rows `first[k]` to `first[k + 1]`; `first` has shape (K+1,).

    After `period_s` they repeat, if it is finite. A client that is there both when the list ends and when it begins
    stays in between: its last interval then extends through the first one of the next lap, which does not count again.
    """

    def __init__(self, first: np.ndarray, starts: np.ndarray, ends: np.ndarray, period_s: float) -> None:
        super().__init__(len(first) - 1)
        self._first, self._starts, self._ends, self._period = first, starts, ends.copy(), period_s
        self._count = np.diff(first)
        self._stays = np.zeros(self.clients, bool)
        some = np.flatnonzero(self._count)
        opening, final = first[some], first[some + 1] - 1
        stays = (starts[opening] == 0) & (ends[final] == period_s)
        self._stays[some] = stays
        self._ends[final[stays]] += ends[opening[stays]]
        self._ends[final[stays & (opening == final)]] = inf  # from the beginning to the end of every lap

    def spans(self, clients: np.ndarray, turns: np.ndarray, ends: np.ndarray) -> Spans:
        count, stays = self._count[clients], self._stays[clients]
        later = np.maximum(turns - count, 0)
        laps, places = np.divmod(later, np.maximum(count - stays, 1))
        again = turns >= count
        lap, place = np.where(again, 1 + laps, 0), np.where(again, stays + places, turns)
        known = (count > 0) & (~again | (np.isfinite(self._period) & (count > stays)))
        if not len(self._starts):
            return np.full(len(clients), inf), np.full(len(clients), inf)
        rows = np.where(known, self._first[clients] + place, 0)
        shift = lap * (self._period if np.isfinite(self._period) else 0.0)
        return np.where(known, self._starts[rows] + shift, inf), np.where(known, self._ends[rows] + shift, inf)


class PresentNow:
    """Who is there as time passes. Time only moves forward; each client's current or next interval is kept."""

    def __init__(self, presence: Intervals) -> None:
        everyone = np.arange(presence.clients)
        self._presence = presence
        self._turn = np.zeros(presence.clients, np.int32)
        self.start, self.end = presence.spans(everyone, self._turn, np.full(presence.clients, -inf))

    def advance(self, at: float) -> None:
        """Move to a time, which is not before the last one: then all ends are after it."""
        while len(over := np.flatnonzero(self.end <= at)):
            self._turn[over] += 1
            self.start[over], self.end[over] = self._presence.spans(over, self._turn[over], self.end[over])

    def there(self, at: float) -> np.ndarray:
        """Who is there, shape (K,) bool."""
        self.advance(at)
        present: np.ndarray = self.start <= at
        return present

    def is_there(self, client: int, at: float) -> bool:
        if self.end[client] <= at:
            self.advance(at)
        return bool(self.start[client] <= at)

    def when(self, count: int, able: np.ndarray, at: float, horizon_s: float) -> float | None:
        """The first time from `at` on when `count` of those who are able, shape (K,) bool, are there together.

        None if that does not happen within the horizon.
        """
        limit, now = at + horizon_s, at
        while now <= limit and np.count_nonzero(able) >= count:
            present = self.there(now) & able
            missing = count - int(np.count_nonzero(present))
            if missing <= 0:
                return now
            coming = self.start[able & ~present]
            # Not before this many have arrived, even if nobody leaves.
            now = float(np.partition(coming, missing - 1)[missing - 1])
        return None


class _Draws:
    """Two numbers for each client and turn, drawn for all clients of a turn at once and kept for a while."""

    def __init__(self, draw: Callable[[int], np.ndarray]) -> None:
        self._draw, self._kept = draw, OrderedDict[int, np.ndarray]()

    def of(self, clients: np.ndarray, turns: np.ndarray) -> Spans:
        found = np.empty((2, len(clients)))
        for turn in np.unique(turns):
            chosen = turns == turn
            found[:, chosen] = self._of_turn(int(turn))[:, clients[chosen]]
        return found[0], found[1]

    def _of_turn(self, turn: int) -> np.ndarray:
        if turn not in self._kept:
            self._kept[turn] = self._draw(turn)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(turn)
        return self._kept[turn]


def _normal(seed: int, turn: int, clients: int) -> np.ndarray:
    rng = seeds.rng(seed, turn, seeds.NONE, "nights")
    return rng.standard_normal((2, clients), dtype=np.float32)


def _exponential(seed: int, turn: int, clients: int) -> np.ndarray:
    rng = seeds.rng(seed, turn, seeds.NONE, "on and off")
    return rng.standard_exponential((2, clients), dtype=np.float32)
