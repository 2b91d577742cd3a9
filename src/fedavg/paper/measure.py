"""The result of a cell, from the records, and what it still needs. Combines cells, search and records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from pathlib import Path
from statistics import median
from typing import Final

from fedavg.campaign.execute import Need
from fedavg.campaign.racing import Standing, outcome, settled
from fedavg.campaign.records import ABANDONED, CAP, Record, Records, is_locked, setting_key
from fedavg.errors import RunDirError
from fedavg.paper.cells import ALL_CELLS, Cell, Setting, first_guess
from fedavg.paper.search import (
    COARSE,
    RateSearch,
    SearchVerdict,
    Todo,
    best_place,
    next_step,
    place,
    rate,
    spare_step,
)
from fedavg.runlog.rundir import RunDir

MEASURED: Final = "measured"
RUNNING: Final = "running"
NOT_RUN: Final = "not run"


@dataclass(frozen=True)
class MeasuredCell:
    """A cell beside its measurement. `values` has the rounds to the target for each seed, None where not reached."""

    cell: Cell
    status: str
    eta: float | None = None
    inside: bool = False
    values: tuple[float | None, ...] = ()
    seeds: tuple[int, ...] = ()
    best_accuracy: float | None = None
    #: How many rounds the best rate ran, for a target that was not reached.
    rounds_run: int = 0
    date: str = ""
    runs: tuple[Record, ...] = ()

    @property
    def ours(self) -> float | None:
        """The median over seeds; None if not measured, or if the target was not reached."""
        if not self.values:
            return None
        middle = median(inf if value is None else value for value in self.values)
        return middle if middle < inf else None

    @property
    def ratio(self) -> float | None:
        return self.ours / self.cell.paper if self.ours is not None and self.cell.paper else None

    @property
    def measured(self) -> bool:
        return self.status == MEASURED


def result_of(cell: Cell, records: Records, running: frozenset[str] = frozenset()) -> MeasuredCell:
    """`running`: the keys of settings that a process is at work on (see running_keys)."""
    runs = _by_place(cell.setting, records, 0)
    step = next_step(_search(cell, records), _outcomes(cell, runs))
    at_work = cell.setting.key in running
    if isinstance(step, Todo) or step.place is None:
        status = RUNNING if at_work else MEASURED if isinstance(step, SearchVerdict) else NOT_RUN
        return MeasuredCell(cell, status, runs=tuple(runs.values()))
    chosen = runs[step.place]
    by_seed = [chosen, *_seed_runs(cell, records, step.place)]
    return MeasuredCell(
        cell,
        status=MEASURED,
        eta=rate(step.place),
        inside=step.inside,
        values=tuple(_judge(run, cell.target).crossed for run in by_seed),
        seeds=tuple(run.plan.seed for run in by_seed),
        best_accuracy=step.accuracy,
        rounds_run=chosen.rounds_run,
        date=max(run.date for run in by_seed),
        runs=tuple(runs.values()),
    )


def needs(cell: Cell, records: Records, seeds: int = 1, refine: bool = False) -> list[Need]:
    """The runs that are still to be done: the search on seed 0, then the other seeds at the rate that it chose.

    If no rate reached the target, other seeds are not tried.
    """
    search, outcomes = _search(cell, records, refine), _outcomes(cell, _by_place(cell.setting, records, 0))
    step = next_step(search, outcomes)
    if isinstance(step, Todo):
        meanwhile = spare_step(search, outcomes)
        spare = [replace(need, spare=True) for need in _rate_needs(cell, meanwhile)] if meanwhile else []
        return [*_rate_needs(cell, step), *spare]
    if step.place is None or step.rounds is None:
        return []
    eta = rate(step.place)
    done = {run.plan.seed for run in _seed_runs(cell, records, step.place)}
    return [_need(cell, eta, seed, cell.allowance, None) for seed in range(1, seeds) if seed not in done]


def _rate_needs(cell: Cell, todo: Todo) -> list[Need]:
    return [_need(cell, rate(index), 0, todo.cap, todo.leader) for index in todo.rates]


def _need(cell: Cell, eta: float, seed: int, cap: int, leader: int | None) -> Need:
    if leader is not None:
        stopped, reason = ABANDONED, f"lr {rate(leader):g} reached {cell.target:g} by then"
    elif cap < cell.allowance:
        stopped, reason = ABANDONED, "a stage of the search ended, and rates that trail are not run on"
    else:
        stopped, reason = CAP, f"{cell.target:g} not reached in the {cap} rounds allowed"
    return Need(cell.plan(eta, seed), cell.target, cap, stopped, reason, cell.setting.model.train_sample)


def _search(cell: Cell, records: Records, refine: bool = False) -> RateSearch:
    expected = cell.paper if cell.paper is not None else inf
    return RateSearch(middle(cell.setting, records), cell.allowance, cell.setting.eval_every, refine, expected)


def middle(setting: Setting, records: Records) -> int:
    """Where a search starts: at the best rate of the nearest setting with runs, else at a guess.

    The start is always on the guess's grid, so that a search never changes its grid.
    """
    guess = first_guess(setting)
    for other in _related(setting):
        runs = {i: run for i, run in _by_place(other, records, 0).items() if (i - guess) % COARSE == 0}
        best = best_place({i: _judge(run, _lowest_target(other)) for i, run in runs.items()})
        if best is not None:
            return best
    return guess


@lru_cache
def _related(setting: Setting) -> tuple[Setting, ...]:
    """Settings of the tables with the same model, data and B, the nearest C and E first."""
    same = {
        cell.setting
        for cell in ALL_CELLS
        if cell.setting != setting
        and (cell.setting.model, cell.setting.partition, cell.setting.B, cell.setting.lr_decay)
        == (setting.model, setting.partition, setting.B, setting.lr_decay)
    }
    return tuple(sorted(same, key=lambda s: (abs(s.E - setting.E), abs(s.C - setting.C), s.C)))


@lru_cache
def _lowest_target(setting: Setting) -> float:
    return min(cell.target for cell in ALL_CELLS if cell.setting == setting)


def _by_place(setting: Setting, records: Records, seed: int) -> dict[int, Record]:
    """The runs of a setting with this seed, by their place on the grid."""
    runs = [run for run in records.of(setting.key) if run.plan.seed == seed]
    return {index: run for run in runs if (index := place(run.plan.eta)) is not None}


def _outcomes(cell: Cell, runs: dict[int, Record]) -> dict[int, Standing]:
    return {index: _judge(run, cell.target) for index, run in runs.items()}


def _judge(run: Record, target: float) -> Standing:
    return outcome(run.rounds, run.values, target, run.diverged)


def _seed_runs(cell: Cell, records: Records, index: int) -> list[Record]:
    """The finished runs of other seeds at the chosen rate."""
    runs = [run for run in records.of(cell.setting.key) if run.plan.seed and place(run.plan.eta) == index]
    return sorted(
        (run for run in runs if settled(_judge(run, cell.target), cell.allowance)), key=lambda run: run.plan.seed
    )


def running_keys(runs: Path) -> frozenset[str]:
    """The settings that processes are working on now: one of their run directories is locked."""
    locked = [path.parent for path in sorted(runs.glob("*/lock")) if is_locked(path.parent)]
    return frozenset(key for path in locked if (key := _key_of(path)) is not None)


def _key_of(directory: Path) -> str | None:
    try:
        return setting_key(RunDir(directory).plan())
    except RunDirError:  # just being created, or of another version
        return None


def results(cells: Sequence[Cell], records: Records, running: frozenset[str] = frozenset()) -> list[MeasuredCell]:
    return [result_of(cell, records, running) for cell in cells]
