"""What a sweep still has to run, from its records alone.

Points that differ only in their learning rate race each other on the first seed, in stages: none runs far ahead, and
a point that diverged, trails, or can no longer reach the target first is dropped. The other seeds are run only for the
remaining points. Without a learning rate among the axes, or with `keep_all`, every point runs to its end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, inf

from fedavg.campaign.execute import Need
from fedavg.campaign.racing import TRAILING, Standing, lag, outcome, stages
from fedavg.campaign.records import ABANDONED, CAP, DIVERGED, TARGET, Record, Records
from fedavg.metrics.goal import Goal
from fedavg.plan import Plan
from fedavg.study.sweep.points import Point


@dataclass(frozen=True)
class RaceRules:
    """How the runs of a sweep are judged, and whether those that cannot win are dropped."""

    goal: Goal
    keep_all: bool = False

    @property
    def races(self) -> bool:
        return not self.keep_all and self.goal.higher_is_better is not None


@dataclass(frozen=True)
class GivenUp:
    """Why a point is not run to its end."""

    round: int
    reason: str


def finished(record: Record | None) -> bool:
    """True if the run ended by itself: another start would add nothing."""
    return record is not None and record.stopped in (TARGET, CAP, DIVERGED)


def groups(points: Sequence[Point]) -> list[list[Point]]:
    """Points that race each other."""
    keyed = sorted(enumerate(points), key=lambda pair: (str(pair[1].rivals), pair[0]))
    return [[point for _, point in rivals] for _, rivals in groupby(keyed, key=lambda pair: str(pair[1].rivals))]


def needs(group: Sequence[Point], records: Records, rules: RaceRules) -> list[Need]:
    """What these points still need: the race on the first seed, then the other seeds of the remaining ones."""
    first = _race(group, records, rules) if rules.races and len(group) > 1 else _to_the_end(group, records, rules)
    if first:
        return first
    dropped = given_up(group, records, rules)
    kept = [point for point in group if point.name not in dropped]
    plans = [plan for point in kept for plan in point.plans[1:]]
    return [_need(plan, plan.rounds, rules) for plan in plans if not finished(records.find(plan))]


def given_up(group: Sequence[Point], records: Records, rules: RaceRules) -> dict[str, GivenUp]:
    """By name, the points that are out of the race, as far as is known."""
    dropped: dict[str, GivenUp] = {}
    if not rules.races or len(group) == 1:
        return dropped
    for end, last in _ends(group, records, rules):
        alive = [point for point in group if point.name not in dropped]
        known = {point: _at(point, records, rules, end) for point in alive}
        if not all(_arrived(records.find(point.plans[0]), end) for point in alive):
            break
        dropped |= _losers(known, end, last)
    return dropped


def _race(group: Sequence[Point], records: Records, rules: RaceRules) -> list[Need]:
    dropped = given_up(group, records, rules)
    alive = [point for point in group if point.name not in dropped]
    for end, _ in _ends(group, records, rules):
        waiting = [point.plans[0] for point in alive if not _arrived(records.find(point.plans[0]), end)]
        if waiting:
            return [_need(plan, end, rules) for plan in waiting]
    return []


def _to_the_end(group: Sequence[Point], records: Records, rules: RaceRules) -> list[Need]:
    plans = [point.plans[0] for point in group]
    return [_need(plan, plan.rounds, rules) for plan in plans if not finished(records.find(plan))]


def _ends(group: Sequence[Point], records: Records, rules: RaceRules) -> Iterator[tuple[int, bool]]:
    """The ends of the stages; the last is the plan's, or where the first point reached the target."""
    plan = group[0].plans[0]
    crossed = [_at(point, records, rules, plan.rounds).crossed for point in group]
    first = min((round for round in crossed if round is not None), default=inf)
    cap = plan.rounds if first == inf else min(plan.eval_every * ceil(first / plan.eval_every), plan.rounds)
    ends = [end for end in stages(plan.rounds, plan.rounds, plan.eval_every) if end < cap]
    # Without a target the highest curve at the end wins, which may start slowly: the first stage drops nobody.
    judged = ends if rules.goal.target is not None else ends[1:]
    yield from ((end, False) for end in dict.fromkeys(judged))
    yield cap, True


def _arrived(record: Record | None, end: int) -> bool:
    return record is not None and (finished(record) or record.rounds_run >= end)


def _at(point: Point, records: Records, rules: RaceRules, end: int) -> Standing:
    """How far a point's first run had come by this round, ignoring later rounds."""
    record = records.find(point.plans[0])
    if record is None:
        return Standing(0, None, -inf)
    seen = [(round, value) for round, value in zip(record.rounds, record.values, strict=True) if round <= end]
    sign = 1.0 if rules.goal.higher_is_better else -1.0
    target = None if rules.goal.target is None else sign * rules.goal.target
    scores = [sign * value for _, value in seen]
    return outcome([round for round, _ in seen], scores, target, record.diverged and record.rounds_run <= end, -inf)


def _losers(known: dict[Point, Standing], end: int, last: bool) -> dict[str, GivenUp]:
    """At the end of a stage, by name: those that diverged, and those that are too far behind the leader."""
    lost = {point.name: GivenUp(result.rounds, "diverged") for point, result in known.items() if result.diverged}
    alive = {point: result for point, result in known.items() if not result.diverged}
    if not alive:
        return lost
    if last:
        winner = min(alive, key=lambda point: alive[point].crossed or inf)
        late = [point for point, result in alive.items() if result.crossed is None and alive[winner].crossed]
        return lost | {point.name: GivenUp(end, f"lr {winner.rate} reached the target by then") for point in late}
    leader = max(alive, key=lambda point: alive[point].best)
    behind = {point: lag(result, alive[leader]) for point, result in alive.items() if point != leader}
    return lost | {
        point.name: GivenUp(end, f"{times:.1f} x the rounds of lr {leader.rate} to reach the same value")
        for point, times in behind.items()
        if times >= TRAILING
    }


def _need(plan: Plan, cap: int, rules: RaceRules) -> Need:
    if cap < plan.rounds:
        return Need(plan, None, cap, ABANDONED, "a stage of the race ended", metric=rules.goal.metric, thrifty=False)
    return Need(plan, None, cap, CAP, f"all {cap} rounds done", metric=rules.goal.metric, thrifty=False)
