"""Runs plans in parallel, one process per core, until goals are met. Knows processes and files, not tables.

A goal says, from the records alone, which runs it still needs. Whenever a run ends, its record is written and all goals
are checked again: so caps fall as soon as a better rate is known, and runs that are no longer needed are stopped. A
kill at any time loses nothing: the same command resumes each run at its last checkpoint.
"""

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from fedavg.campaign.one import BUSY, SIGNALLED
from fedavg.campaign.orders import Order, plan_values, run_directory, write_order
from fedavg.campaign.processes import KILLED, RunProcess, RunStarter, run_starter
from fedavg.campaign.records import ABANDONED, Records, absorb, absorb_one, is_locked
from fedavg.errors import FedAvgError
from fedavg.plan import Plan
from fedavg.runlog.rundir import RunDir
from fedavg.runlog.summary import curve

POLL_S: Final = 0.1
REPORT_S: Final = 30.0
#: How often runs in other processes are checked again, in seconds.
ELSEWHERE_S: Final = 1.0

#: After this many starts without progress, another start of the run will not help.
MOST_VAIN_STARTS: Final = 3
#: Exit codes that do not mean that the run failed.
_IN_ORDER: Final = (0, BUSY, SIGNALLED, -KILLED, -signal.SIGTERM)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Need:
    """A run that a goal still needs: this plan, until the target or the cap (`stopped`, `reason`: see Order).

    `spare`: it may turn out to be needed, and is run only if no goal needs anything else.
    """

    plan: Plan
    target: float | None
    cap: int
    stopped: str
    reason: str
    train_sample: int = 0
    spare: bool = False
    metric: str = "accuracy"
    thrifty: bool = True


@dataclass(frozen=True)
class Aim:
    """Something to measure. `needs` returns the runs still needed, the most informative first; none if it is met."""

    name: str
    command: str
    needs: Callable[[Records], Sequence[Need]]
    estimate_s: float = 0.0


@dataclass(frozen=True)
class Outlay:
    """What may be spent: processes at a time, and seconds in all."""

    jobs: int
    budget_s: float | None = None
    data_dir: str | None = None


@dataclass(frozen=True)
class CampaignReport:
    met: tuple[Aim, ...]
    left: tuple[Aim, ...]
    failed: dict[str, str]


@dataclass
class _Running:
    """A child process at work on an order."""

    process: RunProcess
    order: Order
    path: Path
    goal: Aim
    #: Rounds on record when it was started.
    begun_at: int


@dataclass
class Campaign:
    """Pursues goals in their order, as many runs at a time as there are jobs."""

    goals: Sequence[Aim]
    records: Records
    runs: Path
    outlay: Outlay
    say: Say
    #: Further progress to report now and then: how much is done, and how long the rest may take.
    outlook: Callable[[Records], str] | None = None
    _starter: RunStarter = field(default_factory=run_starter)
    _running: dict[str, _Running] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _vain: Counter[str] = field(default_factory=Counter)

    def run(self) -> CampaignReport:
        self._end = monotonic() + self.outlay.budget_s if self.outlay.budget_s is not None else None
        absorb(self.records, self.runs)
        try:
            with _terminable():
                self._pursue()
        finally:
            self._stop_all()
        met = tuple(goal for goal in self.goals if goal.name not in self._failed and not goal.needs(self.records))
        left = tuple(goal for goal in self.goals if goal not in met and goal.name not in self._failed)
        return CampaignReport(met, left, self._failed)

    def _pursue(self) -> None:
        elsewhere = self._dispatch()
        dispatched = reported = monotonic()
        while (self._running or elsewhere) and self._time_left() > 0:
            sleep(POLL_S)
            if self._collect() or (elsewhere and monotonic() - dispatched >= ELSEWHERE_S):
                elsewhere = self._dispatch()
                dispatched = monotonic()
            if monotonic() - reported >= REPORT_S:
                self._report_progress()
                reported = monotonic()

    def _dispatch(self) -> bool:
        """Start needed runs on free cores, lower caps, stop runs that are no longer needed.

        True if another process works on a needed run, so that the caller must wait.
        """
        wanted, elsewhere = self._wanted()
        for digest, running in self._running.items():
            if digest in wanted:
                self._change_order(running, wanted[digest][1])
            elif running.order.cap:
                self._change_order(running, _no_longer_needed(running))
        for goal, need in wanted.values():
            if len(self._running) >= self.outlay.jobs:
                break
            if need.plan.digest not in self._running and self._fits(goal):
                self._start(goal, need)
        return elsewhere

    def _wanted(self) -> tuple[dict[str, tuple[Aim, Need]], bool]:
        """The needed runs by digest, in the order of the goals, spare ones last; without those of other processes."""
        wanted: dict[str, tuple[Aim, Need]] = {}
        elsewhere = False
        pursued = [goal for goal in self.goals if goal.name not in self._failed]
        needed = [(goal, need) for goal in pursued for need in goal.needs(self.records)]
        for goal, need in sorted(needed, key=lambda pair: pair[1].spare):
            digest = need.plan.digest
            if digest not in self._running and is_locked(self.runs / digest):
                elsewhere = True
            else:
                wanted.setdefault(digest, (goal, need))
        return wanted, elsewhere

    def _fits(self, goal: Aim) -> bool:
        """A goal is started only if it can be expected to be met in the remaining time."""
        if goal.name not in self._begun and goal.estimate_s > self._time_left() * self.outlay.jobs:
            return False
        self._begun.add(goal.name)
        return True

    def _start(self, goal: Aim, need: Need) -> None:
        order = self._order(need, goal.command)
        path = self.runs / f"{need.plan.digest}.json"
        known = self.records.find(need.plan)
        on_record = known.rounds_run if known else 0
        lost = on_record and not run_directory(path).exists()
        again = f"; {on_record} are on record, but their run directory is not here: from the start" if lost else ""
        write_order(path, order)
        self._running[need.plan.digest] = _Running(self._starter.start(path), order, path, goal, on_record)
        self.say(f"{goal.name}: lr {need.plan.eta:g} seed {need.plan.seed}, up to {need.cap} rounds{again}")

    def _order(self, need: Need, command: str) -> Order:
        values = plan_values(need.plan) | {"data_dir": self.outlay.data_dir, "workers": 1}
        return Order(
            values,
            need.target,
            need.cap,
            need.stopped,
            need.reason,
            need.train_sample,
            command,
            need.metric,
            need.thrifty,
        )

    def _change_order(self, running: _Running, need: Need) -> None:
        order = self._order(need, running.goal.command)
        if order != running.order:
            running.order = order
            write_order(running.path, order)

    def _collect(self) -> bool:
        """Record the runs that have ended; True if there were any."""
        ended = [digest for digest, running in self._running.items() if running.process.poll() is not None]
        for digest in ended:
            running = self._running.pop(digest)
            self._take_in(digest, running)
        return bool(ended)

    def _take_in(self, digest: str, running: _Running) -> None:
        absorb_one(self.records, running.path)
        code, plan = running.process.returncode, running.order.to_plan()
        record = self.records.find(plan)
        if record is None or record.rounds_run <= running.begun_at:
            self._vain[digest] += code != BUSY
        if code in _IN_ORDER and self._vain[digest] < MOST_VAIN_STARTS:
            end = record.reason if record else "interrupted before round 1"
            self.say(f"{running.goal.name}: lr {plan.eta:g} seed {plan.seed} {end}")
            return
        lines = running.path.with_suffix(".log").read_text(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"its process ended with {code}"
        self._failed[running.goal.name] = reason
        self.say(f"{running.goal.name}: failed: {reason}")

    def _stop_all(self) -> None:
        """Stop all runs cleanly, and write their records."""
        for running in self._running.values():
            running.process.terminate()
        for running in self._running.values():
            running.process.wait()
        self._collect()
        self._starter.close()

    def _report_progress(self) -> None:
        for running in self._running.values():
            rows = RunDir(run_directory(running.path)).rows()
            _, values = curve(rows, running.order.metric)
            latest = f", {running.order.metric} {values[-1]:.4f}" if values else ""
            plan = running.order.to_plan()
            self.say(f"{running.goal.name}: lr {plan.eta:g} at round {len(rows)} of {running.order.cap}{latest}")
        if self.outlook:
            self.say(self.outlook(self.records))

    def _time_left(self) -> float:
        return float("inf") if self._end is None else self._end - monotonic()


def _no_longer_needed(running: _Running) -> Need:
    order = running.order
    plan, reason = order.to_plan(), "another rate is better"
    return Need(
        plan, order.target, 0, ABANDONED, reason, order.train_sample, metric=order.metric, thrifty=order.thrifty
    )


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that runs are stopped cleanly."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_report(report: CampaignReport) -> None:
    """Raise with the reasons of failed goals, after all others have been pursued."""
    if report.failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in report.failed.items())
        raise FedAvgError(f"{len(report.failed)} could not be measured: {reasons}")
