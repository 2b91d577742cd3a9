"""Which of several runs is ahead, and which can no longer win, from their curves alone.

Curves are those of a score, where higher is better. Pure logic: nothing here knows plans, files or processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from fedavg.runlog.curves import rounds_to_target

#: The ends of the stages, as parts of the rounds that the best run needs or may need: no run goes past the end of a
#: stage before its rivals are there. Much earlier, eventual winners may trail. And the fewest rounds worth a start.
STAGES: Final = (1 / 8, 1 / 3, 2 / 3, 1)
LEAST_STAGE: Final = 4
#: A run that needs this many times the leader's rounds to reach the same score is dropped. In the paper's searches
#: that were run without this rule, no winning rate trailed by more than 1.25 at the end of a stage, except with one
#: client a round on non-IID data (1.66): where curves are that noisy, the rule may drop a winner.
TRAILING: Final = 1.5
#: A run is lost if this many last evaluations are all below half of its best. No run that reached its target had more
#: than 6 such evaluations in a row.
LOST: Final = 30


@dataclass(frozen=True)
class Standing:
    """How far a run has come: rounds evaluated, where it crossed the target, its highest score.

    `curve`: the rounds that were evaluated, and the scores.
    """

    rounds: int
    crossed: float | None
    best: float
    diverged: bool = False
    curve: tuple[Sequence[int], Sequence[float]] = ((), ())


def outcome(
    rounds: Sequence[int], scores: Sequence[float], target: float | None, diverged: bool, worst: float = 0.0
) -> Standing:
    """`worst`: the score of a run that was never evaluated."""
    crossed = rounds_to_target(rounds, scores, target) if target is not None else None
    return Standing(rounds[-1] if rounds else 0, crossed, max(scores, default=worst), diverged, (rounds, scores))


def stages(needed: float, cap: int, every: int) -> list[int]:
    """Rounds, rising to what is needed and to the cap; an evaluation falls on each.

    >>> stages(90, cap=120, every=1)
    [12, 30, 60, 90, 120]
    """
    wanted = [*(max(part * needed, LEAST_STAGE) for part in STAGES), cap]
    return [min(every * ceil(rounds / every), cap) for rounds in wanted]


def settled(result: Standing, cap: int) -> bool:
    """Nothing more can be learned from this run: it has reached the target, diverged, or can no longer win."""
    return result.crossed is not None or result.diverged or result.rounds >= cap


def lost(scores: Sequence[float]) -> bool:
    """A model that learned and fell back for good, as at a rate that is slightly too high: it will not recover."""
    before, latest = scores[:-LOST], scores[-LOST:]
    return bool(before) and max(latest) < max(before) / 2


def lag(behind: Standing, ahead: Standing) -> float:
    """How many times the other run's rounds it took to reach its score; 0 if the other has not reached it."""
    passed = rounds_to_target(*ahead.curve, behind.best)
    return behind.rounds / passed if passed else 0.0
