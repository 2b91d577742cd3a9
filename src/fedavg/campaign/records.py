"""What was measured, as compact JSON: the plan and its curve, no weights. One file for each plan.

Tables and figures are made from the directory of records, and a search consults it before it runs anything: it is part
of the repository, run directories are not. A record is looked up by its plan, not by its file's name, so
that records stay valid when plans gain options.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Final

from fedavg.campaign.orders import read_order
from fedavg.errors import FedAvgError, RunDirError
from fedavg.files import write_atomically
from fedavg.locks import try_lock
from fedavg.plan import Plan, make_plan
from fedavg.runlog.curves import monotone
from fedavg.runlog.rundir import RunDir
from fedavg.runlog.summary import curve

FORMAT: Final = 1
#: The most points of a curve that are kept; more than enough to draw it.
MOST_POINTS: Final = 2000

_ACCURACY: Final = {"values": "accuracy"}
_VALUES: Final = {"accuracy": "values"}

#: Why a run stopped.
TARGET: Final = "target reached"
CAP: Final = "allowance used"
ABANDONED: Final = "abandoned"
DIVERGED: Final = "diverged"
INTERRUPTED: Final = "interrupted"


def setting_key(plan: Plan) -> str:
    """The key that all plans of one learning-rate search share."""
    values = plan.to_dict(runtime=False)
    return json.dumps({name: value for name, value in values.items() if name not in ("lr", "seed")}, sort_keys=True)


class RecordError(FedAvgError):
    """A record cannot be read."""


@dataclass(frozen=True)
class Record:
    """One run: the `values` of the metric that it is judged by and the cohorts' `train_loss` at the evaluated `rounds`.

    `sample_rounds`, `sample_loss`: the shared model's loss on a fixed sample of the training set, if it was noted.
    """

    plan: Plan
    rounds: tuple[int, ...]
    values: tuple[float, ...]
    train_loss: tuple[float, ...]
    sample_rounds: tuple[int, ...]
    sample_loss: tuple[float, ...]
    rounds_run: int
    stopped: str
    reason: str
    seconds: float
    date: str
    command: str
    engine: str
    versions: Mapping[str, str]
    metric: str = "accuracy"

    @property
    def diverged(self) -> bool:
        return self.stopped == DIVERGED

    @cached_property
    def digest(self) -> str:
        return self.plan.digest

    @cached_property
    def key(self) -> str:
        return setting_key(self.plan)


class Records:
    """The records in a directory, by the digest of their plans, and by the key of their search.

    Records of plans with Python objects are kept only in memory: no file can hold them.
    """

    def __init__(self, directory: Path, beside: Path | None = None) -> None:
        """`beside`: a folder whose records count as well; it is never written to."""
        self.directory, self.beside = directory, beside
        self._paths: dict[str, Path] = {}
        self._by_digest: dict[str, Record] = {}
        self._by_key: dict[str, dict[str, Record]] = {}
        for path in sorted(beside.glob("*/*.json")) if beside else ():
            self._remember(read(path))
        for path in sorted(directory.glob("*/*.json")):
            self._keep(read(path), path)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._by_digest.values())

    def find(self, plan: Plan) -> Record | None:
        return self._by_digest.get(plan.digest)

    def of(self, key: str) -> list[Record]:
        """All records of one setting: every learning rate and seed."""
        return list(self._by_key.get(key, {}).values())

    def put(self, record: Record) -> None:
        """Keep this record, unless there is a longer one of the same plan, even from another process."""
        if record.plan.objects():
            self._keep(record, self.directory / record.digest)
            return
        folder = str(record.plan.to_dict()["task"]).replace(":", "-")
        path = self._paths.get(record.digest, self.directory / folder / f"{record.digest}.json")
        if path.exists() and (known := read(path)).rounds_run > record.rounds_run:
            self._keep(known, path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json(record).encode())
        self._keep(record, path)

    def _keep(self, record: Record, path: Path) -> None:
        self._paths[record.digest] = path
        self._remember(record)

    def _remember(self, record: Record) -> None:
        self._by_digest[record.digest] = record
        self._by_key.setdefault(record.key, {})[record.digest] = record


def from_run(directory: RunDir, command: str, metric: str = "accuracy", given: Plan | None = None) -> Record | None:
    """The record of a run directory as it stands; None if it has no round yet, unless it diverged in the first.

    `given`: the plan, if it has objects that no run directory can hold.
    """
    identity, plan, rows = directory.identity(), given or directory.plan(), directory.rows()
    stop = _stop(directory, len(rows))
    if not rows and stop["stopped"] != DIVERGED:
        return None
    rounds, values = curve(rows, metric)
    kept = thin(values)
    sample = _sample(directory, len(rows))
    return Record(
        plan=plan,
        rounds=tuple(rounds[i] for i in kept),
        values=tuple(round(values[i], 5) if metric == "accuracy" else _short(values[i]) for i in kept),
        train_loss=tuple(_short(rows[rounds[i] - 1]["train_loss"]) for i in kept),
        sample_rounds=tuple(sample),
        sample_loss=tuple(_short(loss) for loss in sample.values()),
        rounds_run=len(rows),
        stopped=stop["stopped"],
        reason=stop["reason"],
        seconds=round(sum(row["seconds"] + row["eval_seconds"] for row in rows), 1),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        command=command,
        engine=identity["engine"],
        versions=identity["versions"],
        metric=metric,
    )


def thin(values: Sequence[float]) -> list[int]:
    """Which points to keep, at most about MOST_POINTS. This does not change what the paper reads from a curve.

    The monotone curve is determined by the points where it rises and, for interpolation, the ones just before; the
    others serve only for drawing, and every n-th of them stays.
    """
    if len(values) <= MOST_POINTS:
        return list(range(len(values)))
    best = monotone(values)
    rises = [i for i in range(1, len(best)) if best[i] > best[i - 1]]
    needed = {0, len(values) - 1, *rises, *(i - 1 for i in rises)}
    stride = -(-len(values) // max(MOST_POINTS - len(needed), 1))
    return sorted(needed | set(range(0, len(values), stride)))


def to_json(record: Record) -> str:
    """Strict JSON: one line for each list, so that files stay small and changes readable. Infinity is the text inf."""
    document = {"format": FORMAT, "digest": record.digest} | {
        name: getattr(record, name) for name in Record.__dataclass_fields__
    }
    document["plan"] = plain_plan(record.plan)
    if record.metric == "accuracy":  # the format of records from when only accuracy was measured
        document = {_ACCURACY.get(name, name): value for name, value in document.items() if name != "metric"}
    lines = [f"  {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def plain_plan(plan: Plan) -> dict[str, object]:
    """The plan as values that JSON has, without runtime options (which may name folders of one machine)."""
    return {name: "inf" if value == inf else value for name, value in plan.to_dict(runtime=False).items()}


def read(path: Path) -> Record:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("format") != FORMAT:
            raise RecordError(f"{path} has another format than {FORMAT}; use a matching fedavg")
        del document["digest"]
        plan = make_plan({**document.pop("plan"), "workers": 1}, str(path))
        document = {_VALUES.get(name, name): value for name, value in document.items()}
        lists = {name: tuple(value) for name, value in document.items() if isinstance(value, list)}
        return Record(plan=plan, **(document | lists))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path} is not a record ({error}); expected what 'fedavg paper' or 'fedavg sweep' wrote: remove it"
        ) from None


def _stop(directory: RunDir, rounds: int) -> dict[str, Any]:
    """Why the run stopped; a note about an earlier stop does not count."""
    try:
        note: dict[str, Any] = json.loads((directory.path / "stop.json").read_text())
    except (OSError, ValueError):
        note = {}
    if note.get("round") != rounds:
        return {"stopped": INTERRUPTED, "reason": f"interrupted after round {rounds}"}
    return note


def _sample(directory: RunDir, rounds: int) -> dict[int, float]:
    """Round -> loss on the sample of the training set. A run that was resumed from a checkpoint wrote some twice."""
    path = directory.path / "sample.jsonl"
    if not path.exists():
        return {}
    points = {}
    for line in path.read_text().splitlines():
        try:
            round, loss = json.loads(line)
        except (ValueError, TypeError):  # cut short by a kill
            continue
        points[int(round)] = float(loss)
    return {round: points[round] for round in sorted(points) if round <= rounds}


def _short(value: float) -> float:
    return float(f"{value:.5g}") if value == value and abs(value) < inf else 1e30


def absorb(store: Records, runs: Path) -> None:
    """Add to the records what only the run directories have: the work of a search that was killed."""
    for order in sorted(runs.glob("*.json")):
        absorb_one(store, order)


def absorb_one(store: Records, order: Path) -> None:
    """Add the run of this order, if its plan is of this version and no process is at work on it."""
    directory = RunDir(order.with_suffix(""))
    if not (directory.path / "run.json").exists() or is_locked(directory.path):
        return
    try:
        given = read_order(order)
        plan = directory.plan()
    except (RunDirError, ValueError, TypeError):
        return  # from a plan of another version: it cannot be resumed, and its record exists already
    known, rounds = store.find(plan), directory.metrics_path.read_bytes().count(b"\n")
    # A resumed run may have diverged in its next round: it has no more rows, but a new end.
    news = _stop(directory, rounds)["stopped"] == DIVERGED and not (known and known.diverged)
    if known and known.rounds_run >= rounds and known.stopped != INTERRUPTED and not news:
        return
    record = from_run(directory, given.command, given.metric)
    if record and not (known and replace(record, date=known.date) == known):
        store.put(record)


def is_locked(directory: Path) -> bool:
    """Whether a process is at work on this run directory."""
    try:
        with (directory / "lock").open() as file:
            return not try_lock(file.fileno(), shared=True)
    except FileNotFoundError:
        return False
    except OSError:
        return True
