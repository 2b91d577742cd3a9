"""When a round has enough updates: after all who were asked, at a deadline, or with a quorum. Pure logic on times."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import ceil, inf

import numpy as np

from fedavg.errors import PlanError
from fedavg.specs import Pluggable


class Closing(Pluggable, ABC):
    """The rule that ends a round of which m reports are wanted.

    `over` times m clients are asked. The round ends when `share` of m have reported, at `deadline` seconds, or when
    nobody is left to wait for, whichever comes first. With fewer reports than `minimum` of m it is abandoned, and other
    clients are asked. It begins when `needs` of those to be asked are there; then as many as are there are asked.

    >>> Deadline(600, over=1.3).asked(100), Quorum(0.8).enough(100), Deadline(600).least(100)
    (130, 80, 50)
    """

    kind = "closing"
    over: float = 1.0
    share: float = 1.0
    deadline: float = inf
    minimum: float = 0.0
    needs: float = 1.0

    @classmethod
    def registry(cls) -> Mapping[str, type["Closing"]]:
        return CLOSINGS

    def asked(self, wanted: int) -> int:
        """How many clients are asked, so that `wanted` report."""
        return ceil(round(wanted * self.over, 9))

    def needed(self, wanted: int) -> int:
        """How many clients must be there before the round begins."""
        return max(1, ceil(round(self.asked(wanted) * self.needs, 9)))

    def enough(self, wanted: int) -> int:
        """How many reports end the round."""
        return max(1, ceil(round(wanted * self.share, 9)))

    def least(self, wanted: int) -> int:
        """A round with fewer reports is abandoned."""
        return max(1, ceil(round(wanted * self.minimum, 9)))


@dataclass(frozen=True)
class Everyone(Closing):
    """Waits for all who were asked, except those who drop out. With `over`, for the first m of them.

    >>> str(Everyone())
    'all'
    """

    over: float = 1.0
    minimum: float = 0.0
    needs: float = 1.0

    def __post_init__(self) -> None:
        _check(self, "all")


@dataclass(frozen=True)
class Deadline(Closing):
    """Ends this many seconds after it began, or earlier if m have reported.

    >>> str(Deadline(300, over=1.3))
    'deadline:300:1.3'
    """

    deadline: float = 600.0
    over: float = 1.0
    minimum: float = 0.5
    needs: float = 1.0

    def __post_init__(self) -> None:
        _check(self, "deadline")


@dataclass(frozen=True)
class Quorum(Closing):
    """Ends when a share of m has reported.

    >>> str(Quorum(0.7))
    'quorum:0.7'
    """

    share: float = 0.8
    over: float = 1.0
    deadline: float = inf
    minimum: float = 0.5
    needs: float = 1.0

    def __post_init__(self) -> None:
        _check(self, "quorum")
        if self.minimum > self.share:
            raise PlanError(
                f"closing quorum: got share {self.share:g} and minimum {self.minimum:g}; expected a minimum of at most "
                "the share, with which the round ends"
            )


CLOSINGS: dict[str, type[Closing]] = {"all": Everyone, "deadline": Deadline, "quorum": Quorum}


def _check(closing: Closing, name: str) -> None:
    checks = {
        "over": (closing.over, 1 <= closing.over <= 10, "a factor from 1 to 10"),
        "share": (closing.share, 0 < closing.share <= 1, "a share above 0 and up to 1"),
        "deadline": (closing.deadline, closing.deadline > 0, "seconds above 0"),
        "minimum": (closing.minimum, 0 <= closing.minimum <= 1, "a share from 0 to 1"),
        "needs": (closing.needs, 0 < closing.needs <= 1, "a share above 0 and up to 1"),
    }
    for what, (value, good, expected) in checks.items():
        if not good:
            raise PlanError(f"closing {name}: {what} is {value:g}; expected {expected}")


class Fate(IntEnum):
    """The outcome of a client that was asked."""

    REPORTED = 0
    #: It was still at work when the round ended, or its report came after the one that ended the round.
    LATE = 1
    #: It left, or failed, in the middle.
    DROPPED = 2


@dataclass(frozen=True)
class Closed:
    """How a round ended: when, and the fate of each client that was asked, shape (N,) int8. `reason` says why the
    round was abandoned; it is empty if it was not."""

    at: float
    fates: np.ndarray
    reason: str = ""

    @property
    def reported(self) -> np.ndarray:
        mask: np.ndarray = self.fates == Fate.REPORTED
        return mask


def close(closing: Closing, wanted: int, begin: float, ends: np.ndarray, lost: np.ndarray) -> Closed:
    """The end of a round that began at `begin` and wanted this many reports.

    `ends` is when each client that was asked reports, `lost` when it would leave or fail; both have shape (N,). Of
    those that end together, the first asked comes first.
    """
    arrives = ends <= lost
    over_at = np.where(arrives, ends, lost)
    enough, least = closing.enough(wanted), closing.least(wanted)
    in_order = np.argsort(np.where(arrives, ends, inf), kind="stable")
    count = int(np.count_nonzero(arrives))
    filled = float(ends[in_order[enough - 1]]) if count >= enough else inf
    at = min(filled, begin + closing.deadline, float(over_at.max(initial=begin)))
    fates = np.where(over_at <= at, np.where(arrives, Fate.LATE, Fate.DROPPED), Fate.LATE).astype(np.int8)
    reported = [place for place in in_order[:enough] if arrives[place] and ends[place] <= at]
    fates[reported] = Fate.REPORTED
    return Closed(at, fates, _too_few(fates, len(reported), least))


def _too_few(fates: np.ndarray, reported: int, least: int) -> str:
    if reported >= least:
        return ""
    dropped = int(np.count_nonzero(fates == Fate.DROPPED))
    return f"{reported} of {len(fates)} clients reported in time and {dropped} dropped out; at least {least} are needed"
