"""What the curves of runs can be drawn over, on the command line and on the page."""

from collections.abc import Mapping, Sequence
from typing import Final

#: Each is the sum of these columns up to a round.
AXES: Final[Mapping[str, Sequence[str]]] = {
    "round": (),
    "bytes": ("bytes_up", "bytes_down"),
    "time": ("seconds", "eval_seconds"),
    "simulated": ("simulated_s",),
}
