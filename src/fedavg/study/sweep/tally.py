"""The results of a sweep's points over their seeds, from the records alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Any, Final

from fedavg.campaign.records import DIVERGED, Record, Records
from fedavg.runlog.curves import rounds_to_target
from fedavg.study.sweep.points import Point, shown
from fedavg.study.sweep.race import RaceRules, finished, given_up, groups

DONE: Final = "done"
DROPPED: Final = "dropped"
NOT_DONE: Final = "not done"


@dataclass(frozen=True)
class Span:
    """The mean of a number over seeds, with the lowest and the highest."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Entry:
    """One point: its settings, the runs behind it, and their results.

    `best` and `final` are of the metric that the sweep is judged by. `rounds_to_target` is there only if every seed
    reached the target. A point that was dropped has one seed, up to where it stopped.
    """

    settings: dict[str, Any]
    status: str
    reason: str
    seeds: int
    rounds: int
    best: Span | None
    final: Span | None
    rounds_to_target: Span | None
    seconds: float
    runs: tuple[Record, ...]

    @property
    def name(self) -> str:
        return " ".join(f"{name}={shown(value)}" for name, value in self.settings.items())

    def to_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("best", "final", "rounds_to_target")}
        return {
            "settings": {name: value if _is_plain(value) else str(value) for name, value in self.settings.items()},
            "status": self.status,
            "reason": self.reason,
            "seeds": self.seeds,
            "rounds": self.rounds,
            **{name: vars(span) if span else None for name, span in numbers.items()},
            "seconds": self.seconds,
            "plans": [run.digest for run in self.runs],
        }


def tally(points: Sequence[Point], records: Records, rules: RaceRules) -> list[Entry]:
    """An entry for each point, in order."""
    dropped = {
        name: out for group in groups(points) for name, out in given_up(group, records, rules).items()
    }  # names are unique: they contain all settings
    return [_entry(point, records, rules, dropped.get(point.name)) for point in points]


def ranked(entries: Sequence[Entry], rules: RaceRules) -> list[Entry]:
    """The best first: fewest rounds to the target if there is one, else the best value; unfinished points last."""
    return sorted(entries, key=lambda entry: _rank(entry, rules))


def _rank(entry: Entry, rules: RaceRules) -> tuple[bool, float, float]:
    value = entry.best.mean if entry.best else inf
    worse = value if not rules.goal.higher_is_better else -value
    rounds = entry.rounds_to_target.mean if entry.rounds_to_target else inf
    return entry.status != DONE, rounds, worse if entry.best else inf


def _entry(point: Point, records: Records, rules: RaceRules, out: Any) -> Entry:
    runs = [run for plan in point.plans if (run := records.find(plan)) is not None and (run.rounds or run.diverged)]
    complete = [run for run in runs if finished(run) and not run.diverged]
    diverged = [run for run in runs if run.stopped == DIVERGED]
    if diverged:
        status, reason = DIVERGED, diverged[0].reason
    elif out is not None:
        status, reason = DROPPED, f"after round {out.round}: {out.reason}"
    elif len(complete) == len(point.plans):
        status, reason = DONE, ""
    else:
        status, reason = NOT_DONE, f"{len(complete)} of {len(point.plans)} runs are done"
    judged = [run for run in runs if run.values]
    better = max if rules.goal.higher_is_better else min
    return Entry(
        settings=dict(point.settings),
        status=status,
        reason=reason,
        seeds=len(judged),
        rounds=max((run.rounds_run for run in runs), default=0),
        best=_span([better(run.values) for run in judged]),
        final=_span([run.values[-1] for run in judged]),
        rounds_to_target=_rounds(judged, rules) if status == DONE else None,
        seconds=round(sum(run.seconds for run in runs), 1),
        runs=tuple(runs),
    )


def _rounds(runs: Sequence[Record], rules: RaceRules) -> Span | None:
    if rules.goal.target is None:
        return None
    up = bool(rules.goal.higher_is_better)
    crossed = [rounds_to_target(run.rounds, run.values, rules.goal.target, up) for run in runs]
    reached = [round for round in crossed if round is not None]
    return _span(reached) if len(reached) == len(crossed) else None


def _span(values: Sequence[float]) -> Span | None:
    return Span(fmean(values), min(values), max(values)) if values else None


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool | None)
