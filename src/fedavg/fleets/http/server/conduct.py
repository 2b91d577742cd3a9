"""Who is not invited for a while, and why: the mute, those that fail, those that others name, those that spoil a sum.

Pure logic: the time is handed in. A rest grows fourfold with each strike, and an update that counts wipes the slate
clean. It is kept in memory only: a server that is started again trusts everyone once more.
"""

import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from statistics import median_low
from typing import Final

#: The first rest, in deadlines of a round: long enough that a crowd of the mute is through before its first is back.
FIRST_REST: Final = 8.0
GROWTH: Final = 4.0
LONGEST_S: Final = 24 * 3600.0
#: An update that is so many times larger than the median of its cohort stands out.
STANDS_OUT: Final = 10.0


class Conduct:
    """Strikes, rests, suspicions and complaints. Not thread-safe: the hub's lock guards it."""

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._strikes: Counter[int] = Counter()
        self._until: dict[int, float] = {}
        #: Those who rest for what they did, and not only for silence: they are not called back early.
        self._guilty: set[int] = set()
        self._suspicion: Counter[int] = Counter()
        self._named: dict[int, set[int]] = {}
        self._excused: set[int] = set()

    def strike(self, clients: Iterable[int], now: float, guilty: bool = False) -> None:
        """Send clients to rest."""
        for k in clients:
            self._strikes[k] += 1
            rest_s = min(self._rest_s * GROWTH ** min(self._strikes[k] - 1, 20), LONGEST_S)
            self._until[k] = max(now + rest_s, self._until.get(k, now))
            if guilty:
                self._guilty.add(k)

    def clear(self, clients: Iterable[int]) -> None:
        """What they sent counted, and nothing was wrong with it."""
        for k in clients:
            self._strikes.pop(k, None)
            self._until.pop(k, None)
            self._suspicion.pop(k, None)
            self._guilty.discard(k)

    def rests(self, k: int, now: float) -> bool:
        until = self._until.get(k)
        if until is None:
            return False
        if now >= until:
            del self._until[k]
            self._guilty.discard(k)
            return False
        return True

    def resting(self, now: float) -> set[int]:
        return {k for k in list(self._until) if self.rests(k, now)}

    def call_back(self, there: Collection[int], count: int, now: float) -> list[int]:
        """End the rest of some who are there and were only silent: those first whose rest is nearly over."""
        silent = sorted((self._until[k], k) for k in there if self.rests(k, now) and k not in self._guilty)
        called = [k for _, k in silent[:count]]
        for k in called:
            del self._until[k]
        return called

    def new_attempt(self) -> None:
        self._named, self._excused = {}, set()

    @property
    def excused(self) -> set[int]:
        """Who left the session under way because of one that is known to have spoiled it."""
        return self._excused

    def complain(self, by: int, of: int, witnesses: int, now: float) -> bool:
        """A client says that another spoiled the session; true if with this more than half of who can know say so."""
        if by == of:
            return False
        named = self._named.setdefault(of, set())
        known = 2 * len(named) > witnesses
        named.add(by)
        if 2 * len(named) <= witnesses:
            return False
        self._excused |= named
        if not known:
            self.strike([of], now, guilty=True)
        return not known

    def suspect(self, clients: Collection[int], now: float) -> list[int]:
        """One of these spoiled a sum, and nobody can tell who: half of the most suspicious rest, by lot.

        Who takes part in a good sum is cleared, so that it comes down to the culprit after a few attempts.
        """
        for k in clients:
            self._suspicion[k] += 1
        most = max((self._suspicion[k] for k in clients), default=0)
        suspects = sorted(k for k in clients if self._suspicion[k] == most)
        chosen = secrets.SystemRandom().sample(suspects, (len(suspects) + 1) // 2)
        self.strike(chosen, now, guilty=True)
        return sorted(chosen)


def outstanding(sizes: Mapping[int, float]) -> list[int]:
    """Whose update stands out of its cohort by its size; the largest of all if none does."""
    if not sizes:
        return []
    usual = median_low(sizes.values())
    return [k for k, size in sizes.items() if size > STANDS_OUT * usual] or [max(sizes, key=lambda k: sizes[k])]
