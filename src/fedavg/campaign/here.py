"""Runs in this process, one after another: for plans with Python objects, which cannot be passed to other processes.

Their clients are spread over the cores by the local fleet instead.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedavg.campaign.execute import Aim, Need, Say
from fedavg.campaign.records import CAP, DIVERGED, TARGET, Record, Records, from_run
from fedavg.errors import Diverged
from fedavg.plan import Plan
from fedavg.runlog.rundir import RunDir
from fedavg.runner import resume, run
from fedavg.server import Event, Round


class _Capped(Exception):
    """The run has reached its cap."""


def pursue_here(aims: Sequence[Aim], records: Records, runs: Path, say: Say) -> None:
    """Run until no aim needs anything. Existing run directories are continued."""
    while need := _next(aims, records):
        say(f"{need.plan.digest[:8]}: up to {need.cap} rounds")
        records.put(_run(need, runs / need.plan.digest))


def known_here(plans: Sequence[Plan], runs: Path, metric: str, records: Records) -> None:
    """Record what earlier calls left in the run directories of these plans."""
    for plan in plans:
        directory = RunDir(runs / plan.digest)
        if records.find(plan) is None and (directory.path / "run.json").exists():
            record = from_run(directory, "", metric, plan)
            if record:
                records.put(record)


def _next(aims: Sequence[Aim], records: Records) -> Need | None:
    return next((need for aim in aims for need in aim.needs(records)), None)


def _run(need: Need, path: Path) -> Record:
    directory = RunDir(path)
    try:
        stopped, reason = _outcome(need, directory)
    except (_Capped, Diverged) as end:
        stopped, reason = (DIVERGED, str(end)) if isinstance(end, Diverged) else (need.stopped, need.reason)
    directory.write_json("stop.json", {"round": len(directory.rows()), "stopped": stopped, "reason": reason})
    record = from_run(directory, "", need.metric, need.plan)
    assert record is not None, "a run that ended has rounds, or diverged in the first"
    return record


def _outcome(need: Need, directory: RunDir) -> tuple[str, str]:
    """How a run that was not stopped ended."""
    watch = _cap(need.plan, need.cap)
    if (directory.path / "run.json").exists():
        if len(directory.rows()) >= need.cap:
            raise _Capped
        objects = {name: getattr(need.plan, name) for name, _ in need.plan.objects()}
        result = resume(directory.path, watch, **objects)
    else:
        result = run(need.plan, directory.path, watch)
    reached = result.summary.status == "target reached"
    return (TARGET if reached else CAP), f"{result.summary.status} after {result.summary.rounds} rounds"


def _cap(plan: Plan, rounds: int) -> Callable[[Event], None]:
    """Ends the run at its cap, unless it ends there by itself."""

    def watch(event: Event) -> None:
        if isinstance(event, Round) and rounds <= event.round < plan.rounds:
            raise _Capped

    return watch
