"""A line that several share: max-min fair, as a fair queue at the server divides it. Pure logic on times and bytes."""

from math import inf

import numpy as np


def shared(begin: np.ndarray, size: np.ndarray, own: np.ndarray, capacity: float) -> np.ndarray:
    """When each transfer ends, shape (N,): it begins at `begin`, has `size` bytes, and its own line carries `own`
    bytes/s at most; all together get `capacity`. The others share what a slow line does not use.

    >>> shared(np.zeros(2), np.array([10.0, 10.0]), np.array([10.0, 10.0]), 10.0).tolist()
    [2.0, 2.0]
    """
    if capacity == inf:
        alone: np.ndarray = begin + size / own
        return alone
    end, left = np.full(len(begin), inf), size.astype(np.float64)
    waiting = list(np.argsort(begin, kind="stable")[::-1])
    active = np.zeros(len(begin), bool)
    now = 0.0
    while waiting or active.any():
        if not active.any():
            now = max(now, float(begin[waiting[-1]]))
        while waiting and begin[waiting[-1]] <= now:
            active[waiting.pop()] = True
        chosen = np.flatnonzero(active)
        rates = fair_rates(own[chosen], capacity)
        finish = now + float((left[chosen] / rates).min())
        until = min(finish, float(begin[waiting[-1]]) if waiting else inf)
        left[chosen] -= rates * (until - now)
        done = chosen[left[chosen] <= 1e-9 * size[chosen]] if until == finish else chosen[:0]
        end[done], active[done], now = until, False, until
    return end


def fair_rates(own: np.ndarray, capacity: float) -> np.ndarray:
    """Each transfer's rate on a line: its own rate, if the others leave that much, else an equal share of the rest.

    >>> fair_rates(np.array([1.0, 10.0, 10.0]), 9.0).tolist()
    [1.0, 4.0, 4.0]
    """
    if own.sum() <= capacity:
        return own
    rising = np.sort(own)
    taken = np.concatenate([[0.0], np.cumsum(rising)[:-1]])
    level = (capacity - taken) / np.arange(len(own), 0, -1)
    # The first that wants more than an equal share of what the slower ones leave; all after it do too.
    share = float(level[np.argmax(rising >= level)])
    limited: np.ndarray = np.minimum(own, share)
    return limited
