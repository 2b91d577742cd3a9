"""Times as people write and read them."""

from math import isfinite
from typing import Final

from fedavg.errors import FedAvgError

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(text: str) -> float:
    """A time such as 90s, 30m, 2h or 1.5d in seconds.

    >>> seconds("1.5h")
    5400.0
    """
    number, unit = text[:-1], text[-1:]
    try:
        value = float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        value = -1.0
    if not isfinite(value) or value <= 0:
        raise FedAvgError(f"--budget: got '{text}'; expected a time such as 30m, 2h or 1d")
    return value


def duration(seconds_: float) -> str:
    """Seconds for people: 40 s, 12 min, 3.5 h."""
    if seconds_ < 100:
        return f"{seconds_:.0f} s"
    return f"{seconds_ / 60:.0f} min" if seconds_ < 6000 else f"{seconds_ / 3600:.1f} h"
