"""`sweep`: runs the points of a sweep in parallel, and returns one table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from fedavg.campaign.execute import Aim, Campaign, Need, Outlay, Say, check_report
from fedavg.campaign.here import known_here, pursue_here
from fedavg.campaign.records import Records
from fedavg.checks import goal_of
from fedavg.errors import FedAvgError, PlanError
from fedavg.files import write_atomically
from fedavg.machine import cores
from fedavg.metrics.goal import Goal
from fedavg.plan import Plan, check_plan
from fedavg.setup import resolve_task
from fedavg.study.sweep.axes import Axis, Settings, axes_of, grid
from fedavg.study.sweep.points import Point, points_of, shown
from fedavg.study.sweep.race import RaceRules, finished, groups, needs
from fedavg.study.sweep.search import Drawing, at_random, by_optuna, parse_drawing
from fedavg.study.sweep.tally import DONE, NOT_DONE, Entry, ranked, tally

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class SweepResult:
    """The points of a sweep, the best first, and the metric that they are judged by.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     found = sweep(Plan(data="mnist", C=0.02, rounds=1), {"E": [1, 2]}, directory=folder, jobs=1)
    >>> found
    <SweepResult of 2 points by accuracy: 2 done, best E=2>
    """

    plan: Plan
    goal: Goal
    entries: tuple[Entry, ...]
    directory: Path

    @property
    def best(self) -> Entry:
        """The best point that is done."""
        if self.entries[0].status != DONE:
            raise FedAvgError("no point of the sweep is done yet; expected one: call sweep again to continue")
        return self.entries[0]

    def to_dict(self) -> dict[str, Any]:
        best = self.entries[0]
        return {
            "metric": self.goal.metric,
            "target": self.goal.target,
            "best": best.to_dict()["settings"] if best.status == DONE else None,
            "points": [entry.to_dict() for entry in self.entries],
        }

    def to_pandas(self) -> "pd.DataFrame":
        """One row for each point."""
        from fedavg.runlog.frames import frame

        return frame([_row(entry) for entry in self.entries])

    def __repr__(self) -> str:
        done = sum(entry.status == DONE for entry in self.entries)
        best = f", best {self.entries[0].name}" if done else ""
        return f"<SweepResult of {len(self.entries)} points by {self.goal.metric}: {done} done{best}>"


def sweep(
    plan: Plan,
    grid: Mapping[str, str | Sequence[Any]],
    *,
    seeds: int = 1,
    directory: str | Path = "sweeps/default",
    search: str | None = None,
    keep_all: bool = False,
    jobs: int | None = None,
    budget_s: float | None = None,
    say: Say | None = None,
    command: str = "fedavg.sweep",
) -> SweepResult:
    """Run a plan for every combination of the grid's values and for several seeds, and compare the results.

    `grid` has lists of values or ranges (`"0.03:0.3:7log"`) by the name of an option. Learning rates that cannot win
    are dropped, unless `keep_all`. Runs are kept in the directory: finished ones are not run again, and stopped
    ones are resumed. `search`: `"random:20"` or `"optuna:30"` draw points instead of running them all.

    >>> from tempfile import TemporaryDirectory
    >>> plan = Plan(data="mnist", C=0.02, rounds=1)
    >>> with TemporaryDirectory() as folder:
    ...     found = sweep(plan, {"lr": [0.001, 0.1]}, directory=folder, jobs=1)
    >>> found.best.settings
    {'lr': 0.1}
    """
    check_plan(plan, "sweep")
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise PlanError(f"seeds: got {seeds!r}; expected how many, as in seeds=3")
    folder = Path(directory)
    goal = goal_of(plan, resolve_task(plan))
    axes = axes_of(grid)
    if keep_all and (search is not None or all(axis.name != "lr" for axis in axes)):
        why = f"with search '{search}'" if search is not None else "without a learning rate in the grid"
        raise PlanError(f"keep_all: got true {why}, where no point is dropped; leave it out")
    rules = RaceRules(goal, keep_all or search is not None)
    work = _SweepWork(plan, axes, seeds, parse_drawing(search) if search else None, rules, folder, command)
    outlay = Outlay(jobs or cores(), budget_s, plan.data_dir)
    records = work.pursue(outlay, say or (lambda _: None))
    entries = ranked(tally(work.points(records), records, rules), rules)
    result = SweepResult(plan, goal, tuple(entries), folder)
    write_atomically(folder / "sweep.json", (json.dumps(result.to_dict(), indent=2) + "\n").encode())
    return result


@dataclass(frozen=True)
class _SweepWork:
    """A sweep as aims for a campaign."""

    plan: Plan
    axes: Sequence[Axis]
    seeds: int
    drawing: Drawing | None
    rules: RaceRules
    folder: Path
    command: str

    def points(self, records: Records) -> list[Point]:
        """All points of a grid; of a search, those drawn so far."""
        if self.drawing is None:
            return points_of(self.plan, grid(self.axes), self.seeds)
        if self.drawing.method == "random":
            drawn = at_random(self.axes, self.drawing.points, self.plan.seed)
        else:
            drawn = by_optuna(self.axes, self.drawing.points, self.plan.seed, lambda s: self._score(s, records))
        return points_of(self.plan, drawn, self.seeds)

    def pursue(self, outlay: Outlay, say: Say) -> Records:
        records, runs = Records(self.folder / "records"), self.folder / "runs"
        self.folder.mkdir(parents=True, exist_ok=True)
        aims = self._aims(records)
        objects = [plan for point in self.points(records) for plan in point.plans if plan.objects()]
        if objects:
            say("the plan has objects from Python: runs go one after another, each on all cores")
            known_here(objects, runs, self.rules.goal.metric, records)
            pursue_here(aims, records, runs, say)
            return records
        began, before = monotonic(), self._done(records)

        def outlook(known: Records) -> str:
            return self._outlook(known, monotonic() - began, before)

        check_report(Campaign(aims, records, runs, outlay, say, outlook).run())
        return records

    def _aims(self, records: Records) -> list[Aim]:
        """One aim for a whole search, whose points are not known yet; otherwise one for each group that races."""
        if self.drawing is not None:
            return [Aim("sweep", self.command, self._needs)]
        return [
            Aim(_group_name(group), self.command, partial(_group_needs, group, self.rules))
            for group in groups(self.points(records))
        ]

    def _needs(self, records: Records) -> list[Need]:
        return [need for group in groups(self.points(records)) for need in needs(group, records, self.rules)]

    def _score(self, settings: Settings, records: Records) -> float | None:
        """The score for Optuna: the mean of the best values over seeds; minus infinity if a run diverged."""
        (entry,) = tally(points_of(self.plan, [settings], self.seeds), records, self.rules)
        if entry.status == NOT_DONE:
            return None
        if entry.status != DONE or entry.best is None:
            return -inf
        return entry.best.mean if self.rules.goal.higher_is_better else -entry.best.mean

    def _done(self, records: Records) -> int:
        return sum(finished(records.find(plan)) for point in self.points(records) for plan in point.plans)

    def _outlook(self, records: Records, elapsed_s: float, before: int) -> str:
        """How many runs are done, and when the rest would be if they take as long; racing shortens that."""
        total = sum(len(point.plans) for point in self.points(records))
        done = self._done(records)
        left = f", at most {elapsed_s / (done - before) * (total - done) / 60:.0f} min left" if done > before else ""
        return f"{done} of {total} runs done{left}"


def _group_name(group: Sequence[Point]) -> str:
    return " ".join(f"{name}={shown(value)}" for name, value in group[0].rivals) or "sweep"


def _group_needs(group: Sequence[Point], rules: RaceRules, records: Records) -> list[Need]:
    return needs(group, records, rules)


def _row(entry: Entry) -> dict[str, Any]:
    spans = {"best": entry.best, "final": entry.final, "rounds_to_target": entry.rounds_to_target}
    numbers = {
        f"{name}_{key}" if key != "mean" else name: getattr(span, key) if span else None
        for name, span in spans.items()
        for key in ("mean", "low", "high")
    }
    return {**entry.settings, "status": entry.status, "seeds": entry.seeds, "rounds": entry.rounds, **numbers}
