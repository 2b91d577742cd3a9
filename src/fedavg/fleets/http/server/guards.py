"""What an operator asks of clients and of their updates."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Guards:
    """Who is let in, bounds on what a client may send, and whether updates come without a name."""

    max_weight: float = 1e6
    #: No update counts for more than so many times the median n_k of the clients that are enrolled.
    times_median: float = 5.0
    max_norm: float | None = None
    anonymous: bool = False
    #: New clients wait until the operator approves of them.
    approval: bool = False
