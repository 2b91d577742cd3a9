"""What an operator requires of clients and of their updates."""

from dataclasses import dataclass
from math import inf

from fedavg.errors import PlanError
from fedavg.fleets.http.protocol.wire import MIN_WEIGHT


@dataclass(frozen=True)
class Guards:
    """Who may enrol, bounds on what a client may send, and whether updates are anonymous."""

    max_weight: float = 1e6
    #: No update counts for more than this many times the median n_k of the enrolled clients.
    times_median: float = 5.0
    max_norm: float | None = None
    anonymous: bool = False
    #: New clients wait until the operator approves them.
    approval: bool = False

    def __post_init__(self) -> None:
        heaviest, norm = self.max_weight, self.max_norm
        checks = {
            "max-weight": (heaviest, MIN_WEIGHT <= heaviest < inf, f"a finite number from {MIN_WEIGHT:g}"),
            "times-median": (self.times_median, self.times_median >= 1, "a factor from 1"),
            "norm-bound": (norm, norm is None or 0 < norm < inf, "a finite number above 0"),
        }
        for name, (value, good, expected) in checks.items():
            if not good:  # also refuses NaN: every comparison with it is false, so nothing would exceed the bound
                raise PlanError(f"{name}: got {value}; expected {expected}")
