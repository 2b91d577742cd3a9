"""The paper's search for a learning rate (§3), as a state machine: what is known so far -> what to run next, or an end.

Rates are on a multiplicative grid of 10^(1/3), refinable to 10^(1/6), and are counted in sixths of a decade: rate i is
10^(i/6). The search starts in the middle and widens until the best rate is strictly inside: both its neighbours were
tried and did no better. It is thrifty. A rate is not run any further once it has used as many rounds as the best one
needed, trails the best by far at the end of a stage, has diverged, or has fallen back for good. No rate is run far
ahead of its neighbours, so that a bad start costs little: one stage at most, and only if a core would be idle. Pure
logic: nothing here knows plans, files or processes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, inf, log10
from typing import Final

from fedavg.campaign.racing import TRAILING, Standing, lag, settled, stages
from fedavg.runlog.curves import monotone

#: The step of the paper's coarser grid, in sixths of a decade.
COARSE: Final = 2
FINE: Final = 1
#: The paper's grids have 11 to 13 rates; a search that wants more is not converging.
MOST_RATES: Final = 13


def rate(index: int) -> float:
    """The learning rate of a place on the grid, to three digits, as the paper writes it (1.47).

    >>> rate(-4), rate(1)
    (0.215, 1.47)
    """
    return float(f"{10 ** (index / 6):.3g}")


def place(eta: float) -> int | None:
    """The place of a learning rate on the grid; None if it is not on it."""
    index = round(6 * log10(eta))
    return index if rate(index) == eta else None


@dataclass(frozen=True)
class RateSearch:
    """`allowance`: rounds after which the target counts as not reached; `every`: rounds between evaluations.

    `expected`: rounds that the best rate may need; a guess, which only costs time if it is wrong.
    """

    middle: int
    allowance: int
    every: int = 1
    refine: bool = False
    expected: float = inf


@dataclass(frozen=True)
class Todo:
    """Rates to run next, the most informative first, up to `cap` rounds each; `leader` is the rate that set the cap.

    Without a leader the cap is the end of a stage, or the allowance.
    """

    rates: tuple[int, ...]
    cap: int
    leader: int | None


@dataclass(frozen=True)
class SearchVerdict:
    """The best rate and its rounds to the target, or None and the highest accuracy if no rate reached it.

    `inside`: both neighbours on the grid were tried and did no better. `place` is None if every rate diverged.
    """

    place: int | None
    rounds: float | None
    accuracy: float
    inside: bool


def next_step(search: RateSearch, results: Mapping[int, Standing]) -> Todo | SearchVerdict:
    """What to run next, given how far each rate has come; a verdict if there is nothing left to run.

    Rates that were only partly run are continued: a search that was killed, or that ran for another target, is no
    special case.
    """
    return next(_todos(search, results), None) or _verdict(results)


def spare_step(search: RateSearch, results: Mapping[int, Standing]) -> Todo | None:
    """What may be run on an idle core meanwhile: the next stage of rates that wait for others to end the current one.

    By present knowledge they will be needed there; if one of the others turns out better, the work was in vain.
    """
    match list(islice(_todos(search, results), 2)):
        case [now, then]:
            waiting = tuple(i for i in then.rates if i in results and i not in now.rates)
            return replace(then, rates=waiting) if waiting else None
    return None


def _todos(search: RateSearch, results: Mapping[int, Standing]) -> Iterator[Todo]:
    """What each stage still needs, from the first that needs anything."""
    cap, leader = round_cap(search, results)
    ends = stages(cap if leader is not None else min(search.expected, cap), cap, search.every)
    on_grid = {i: o for i, o in results.items() if (i - search.middle) % COARSE == 0}
    grids = ((COARSE, on_grid), (FINE, results)) if search.refine else ((COARSE, on_grid),)
    for step, known in grids:
        for stage in ends:
            if wanted := _unsettled(search.middle, known, step, stage, ends[0]):
                yield Todo(wanted, stage, leader if stage == cap else None)


def round_cap(search: RateSearch, results: Mapping[int, Standing]) -> tuple[int, int | None]:
    """Rounds after which a run cannot beat the best one, and the rate that sets this cap; else the allowance, and None.

    A curve is known only where it was evaluated: a run that crosses before the best one may show it only at the next
    evaluation, so the cap is rounded up to an evaluated round.
    """
    crossed = {i: o.crossed for i, o in results.items() if o.crossed is not None}
    if not crossed:
        return search.allowance, None
    leader = min(crossed, key=lambda i: (crossed[i], i))
    return min(search.every * ceil(crossed[leader] / search.every), search.allowance), leader


def best_place(results: Mapping[int, Standing]) -> int | None:
    """The rate that reached the target first; if none did, the one with the highest accuracy. None if all diverged."""
    reached = {i: o.crossed for i, o in results.items() if o.crossed is not None}
    if reached:
        return min(reached, key=lambda i: (reached[i], i))
    alive = {i: o.best for i, o in results.items() if not o.diverged}
    return max(alive, key=lambda i: (alive[i], -i)) if alive else None


def _unsettled(middle: int, results: Mapping[int, Standing], step: int, cap: int, first: int) -> tuple[int, ...]:
    """Of the best rate and its two neighbours, those still to run: the ones already started first, then higher ones.

    A rate that is too high soon diverges; one that is too low trails, which takes at least `first` rounds to show.
    """
    best = best_place(results)
    if best is None:
        lowest = min(results, default=None)
        trio = (middle, middle + step, middle - step) if lowest is None else (lowest - step,)
    else:
        trio = (best, best + step, best - step)
    begun = [i for i in trio if i in results and not settled(results[i], cap)]
    worth = [i for i in begun if i == best or results[i].rounds < first or lag(results[i], results[trio[0]]) < TRAILING]
    new = [i for i in trio if i not in results]
    return (*worth, *new[: max(MOST_RATES - len(results), 0)])


def _verdict(results: Mapping[int, Standing]) -> SearchVerdict:
    best = best_place(results)
    if best is None:
        return SearchVerdict(None, None, max((o.best for o in results.values()), default=0.0), inside=False)
    inside = any({best - step, best + step} <= results.keys() for step in (FINE, COARSE))
    return SearchVerdict(best, results[best].crossed, results[best].best, inside)


def envelope(curves: Iterable[tuple[Sequence[int], Sequence[float]]]) -> tuple[list[int], list[float]]:
    """The best rate at each point (§3): the upper envelope of the monotone curves, at all rounds that any of them has.

    A curve that ends early keeps its best value. The envelope ends with the curve that first reaches the top: what
    slower ones do later says nothing about the best rate.
    """
    raised = [(rounds, monotone(values)) for rounds, values in curves if rounds]
    known: dict[int, float] = {}
    for rounds, values in raised:
        for round, value in zip(rounds, values, strict=True):
            known[round] = max(value, known.get(round, value))
    if not known:
        return [], []
    top = max(known.values())
    first, _ = min((c for c in raised if top in c[1]), key=lambda c: c[0][c[1].index(top)])
    kept = [round for round in sorted(known) if round <= first[-1]]
    return kept, monotone([known[round] for round in kept])
