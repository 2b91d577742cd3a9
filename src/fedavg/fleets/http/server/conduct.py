"""Which clients are not invited for a while, and why: they are silent, fail, are named by others, or spoil a sum.

Pure logic: the time is passed in. A rest grows fourfold with each strike, and an update that counts wipes the slate
clean. All of it is kept in memory only: a restarted server trusts everyone again.
"""

import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from statistics import median_low
from typing import Final

#: The first rest, in round deadlines: long enough that all of a crowd of silent clients is tried before the first of
#: them returns.
FIRST_REST: Final = 8.0
GROWTH: Final = 4.0
LONGEST_S: Final = 24 * 3600.0
#: An update stands out if it is this many times larger than the median of its cohort.
STANDS_OUT: Final = 10.0


class Conduct:
    """Strikes, rests, suspicions and complaints. Not thread-safe: the hub's lock guards it."""

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._strikes: Counter[int] = Counter()
        self._until: dict[int, float] = {}
        #: Clients that rest for something they did, not only for silence: they are not called back early.
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
        """Wipe the slate clean: what these clients sent was good, and counted."""
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
        """End the rest of some clients that are there and were only silent: those with the least rest left first."""
        silent = sorted((self._until[k], k) for k in there if self.rests(k, now) and k not in self._guilty)
        called = [k for _, k in silent[:count]]
        for k in called:
            del self._until[k]
        return called

    def new_attempt(self) -> None:
        self._named, self._excused = {}, set()

    @property
    def excused(self) -> set[int]:
        """The clients that left the session under way because of a client that is known to have spoiled it."""
        return self._excused

    def complain(self, by: int, of: int, witnesses: int, now: float) -> bool:
        """A client says that another spoiled the session; true if this makes it more than half of the witnesses."""
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
        """One of these clients, unknown which, spoiled a sum: put a random half of the most suspicious to rest.

        Clients in a good sum are cleared, so a few attempts narrow it down to the culprit.
        """
        for k in clients:
            self._suspicion[k] += 1
        most = max((self._suspicion[k] for k in clients), default=0)
        suspects = sorted(k for k in clients if self._suspicion[k] == most)
        chosen = secrets.SystemRandom().sample(suspects, (len(suspects) + 1) // 2)
        self.strike(chosen, now, guilty=True)
        return sorted(chosen)


def outstanding(sizes: Mapping[int, float]) -> list[int]:
    """The clients whose updates are unusually large for their cohort; if there are none, the one with the largest."""
    if not sizes:
        return []
    usual = median_low(sizes.values())
    return [k for k, size in sizes.items() if size > STANDS_OUT * usual] or [max(sizes, key=lambda k: sizes[k])]
