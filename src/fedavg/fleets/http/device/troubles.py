"""How long a device rests after a failure: longer each time, with some randomness, until something succeeds."""

import random
from typing import Final

#: Seconds of the first rest, and of the longest.
FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0


class Troubles:
    """Keeps a server, or a proxy, that causes failure after failure from keeping this device busy.

    >>> troubles = Troubles()
    >>> rests = [troubles.rest() for _ in range(4)]
    >>> all(0.5 <= rest / expected <= 1.5 for rest, expected in zip(rests, [1, 2, 4, 8]))
    True
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def rest(self) -> float:
        """Something failed again: how many seconds to rest."""
        seconds = min(LONGEST_S, FIRST_S * 2.0**self._in_a_row)
        self._in_a_row = min(self._in_a_row + 1, 30)
        return seconds * random.uniform(0.5, 1.5)

    def over(self) -> None:
        """Something succeeded."""
        self._in_a_row = 0
