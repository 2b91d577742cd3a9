"""How long a device rests after things went wrong: longer each time, and at random, until something goes right."""

import random
from typing import Final

#: Seconds of the first rest, and of the longest.
FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0


class Troubles:
    """A server that goes on offering what this device cannot do does not keep it busy; nor does what stands between.

    >>> troubles = Troubles()
    >>> rests = [troubles.rest() for _ in range(4)]
    >>> all(0.5 <= rest / expected <= 1.5 for rest, expected in zip(rests, [1, 2, 4, 8]))
    True
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def rest(self) -> float:
        """Something went wrong once more: how many seconds to rest."""
        seconds = min(LONGEST_S, FIRST_S * 2.0**self._in_a_row)
        self._in_a_row = min(self._in_a_row + 1, 30)
        return seconds * random.uniform(0.5, 1.5)

    def over(self) -> None:
        """Something went right."""
        self._in_a_row = 0
