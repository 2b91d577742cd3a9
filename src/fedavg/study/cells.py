"""Published figures beside ours, cell by cell: what a cell needs, what is on record, and what is left to run.

A cell is measured by a few plans, each a run with its own record. So a stopped command resumes where it was, and a
table can be made at any time from the existing records.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from time import monotonic
from typing import Any, Final

from fedavg.campaign.execute import Aim, Campaign, Need, Outlay, Say, check_report
from fedavg.campaign.records import CAP, DIVERGED, Record, Records
from fedavg.plan import Plan

#: The accuracy of guessing among ten classes, which counts for a run that diverged.
GUESSING: Final = 0.1


@dataclass(frozen=True)
class PublishedCell:
    """One number of a published table. `value` computes ours from the records of the plans, in their order."""

    name: str
    command: str
    plans: tuple[Plan, ...]
    published: float
    #: How close ours should be.
    within: float
    value: Callable[[Sequence[Record]], float]
    #: What the runs are judged by.
    metric: str = "accuracy"


@dataclass(frozen=True)
class FoundCell:
    """A cell beside its records. `ours` is None while a run is missing.

    `rounds`: the rounds of the least advanced run, and of how many.
    """

    cell: PublishedCell
    ours: float | None
    rounds: tuple[int, int]

    @property
    def holds(self) -> bool | None:
        """Whether ours is close enough; None if it is incomplete, or there is nothing to compare it with."""
        whole = self.ours is not None and self.rounds[0] == self.rounds[1]
        if not whole or self.ours is None or not isfinite(self.cell.published):
            return None
        return abs(self.ours - self.cell.published) <= self.cell.within

    def to_dict(self) -> dict[str, Any]:
        cell = self.cell
        return {
            "cell": cell.name,
            "published": cell.published if isfinite(cell.published) else None,
            "ours": self.ours,
            "within": cell.within,
            "holds": self.holds,
            "rounds": list(self.rounds),
            "command": cell.command,
        }


def found(cell: PublishedCell, records: Records, partial: bool = False) -> FoundCell:
    """What is known about a cell; with `partial`, also from runs that have not ended."""
    known = [record for plan in cell.plans if (record := records.find(plan)) and (record.values or record.diverged)]
    done = [min(known_rounds(record), record.plan.rounds) for record in known]
    complete = len(known) == len(cell.plans) and all(
        rounds >= record.plan.rounds for rounds, record in zip(done, known, strict=True)
    )
    usable = complete or (partial and len(known) == len(cell.plans))
    least = min(done) if len(known) == len(cell.plans) else 0
    return FoundCell(cell, cell.value(known) if usable else None, (least, cell.plans[0].rounds))


def known_rounds(record: Record) -> int:
    """How many rounds are known; a run that diverged counts as complete."""
    return record.plan.rounds if record.stopped == DIVERGED else record.rounds_run


def best(record: Record) -> float:
    """The highest accuracy of a run, as in ByzFL's heat maps."""
    return max(record.values, default=GUESSING)


def last(record: Record) -> float:
    return record.values[-1] if record.values else GUESSING


def pursue(
    cells: Sequence[PublishedCell], records: Records, runs: Path, outlay: Outlay, say: Say, stage: int | None
) -> None:
    """Run what cells lack, in order; with `stage`, all of them to this many rounds before any goes further."""
    end = monotonic() + (inf if outlay.budget_s is None else outlay.budget_s)
    for cap in _caps(cells, stage):
        aims = [Aim(cell.name, cell.command, _needs(cell, cap)) for cell in cells]
        left = None if outlay.budget_s is None else max(end - monotonic(), 0.0)
        report = Campaign(aims, records, runs, replace(outlay, budget_s=left), say).run()
        check_report(report)
        if report.left:  # the time is up
            return


def _caps(cells: Sequence[PublishedCell], stage: int | None) -> list[int]:
    most = max((plan.rounds for cell in cells for plan in cell.plans), default=0)
    return [*range(stage, most, stage), most] if stage else [most]


def _need(cell: PublishedCell, plan: Plan, cap: int) -> Need:
    rounds = min(cap, plan.rounds)
    return Need(plan, None, rounds, CAP, f"{rounds} rounds are asked for", metric=cell.metric, thrifty=False)


def _has(record: Record | None, rounds: int) -> bool:
    return record is not None and known_rounds(record) >= rounds


def _needs(cell: PublishedCell, cap: int) -> Callable[[Records], Sequence[Need]]:
    def needs(known: Records) -> Sequence[Need]:
        return [_need(cell, plan, cap) for plan in cell.plans if not _has(known.find(plan), min(cap, plan.rounds))]

    return needs


def written(results: Sequence[FoundCell], text: str, path: Path) -> list[Path]:
    """The table for people (Markdown) and for programs (JSON)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(".md"), path.with_suffix(".json")]
    files[0].write_text(text + "\n", encoding="utf-8")
    document = [result.to_dict() for result in results]
    files[1].write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return files


def shown(result: FoundCell, digits: int) -> str:
    """Ours beside the published figure; or the progress of runs that have not ended."""
    published = result.cell.published
    theirs = f" ({published:.{digits}f})" if isfinite(published) else ""
    if result.ours is None:
        return f"not run{theirs}"
    done, rounds = result.rounds
    return f"{result.ours:.{digits}f}{theirs}" + (f" after {done} of {rounds}" if done < rounds else "")


def markdown(title: str, heads: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table whose first column is headed by the title."""
    lines = [f"| {title} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())])
