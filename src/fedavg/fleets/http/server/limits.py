"""How often one source may ask."""

from time import monotonic
from typing import Final

#: The most sources that are remembered; beyond that, the least recently seen are forgotten.
REMEMBERED: Final = 100_000


class Buckets:
    """A token bucket for each source: `rate` requests per second in the long run, `burst` at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left: dict[object, tuple[float, float]] = {}

    def wait(self, source: object, now: float | None = None) -> float:
        """Zero if the request may pass, which is then counted; otherwise the seconds until one may."""
        now = monotonic() if now is None else now
        left, then = self._left.pop(source, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._rate)
        passed = left >= 1
        self._left[source] = (left - 1 if passed else left, now)  # at the end: the first is the least recently seen
        if len(self._left) > REMEMBERED:
            del self._left[next(iter(self._left))]
        return 0.0 if passed else (1 - left) / self._rate
