"""Compares several runs, from their directories alone: what differs between their plans, and their results."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fedavg.errors import RunDirError
from fedavg.files import checked_path
from fedavg.plan import Plan
from fedavg.runlog.frames import flat_rows, frame
from fedavg.runlog.rundir import RunDir
from fedavg.runlog.seals import unsealed
from fedavg.study.axes import AXES

if TYPE_CHECKING:
    import pandas as pd

#: Options that do not affect the result, and so are not compared.
RUNTIME: Final = frozenset(spec.name for spec in fields(Plan) if spec.metadata["runtime"])
#: The depth of folders that are searched for runs.
DEPTH: Final = 4


@dataclass(frozen=True)
class ReadRun:
    """A run directory as it is now. `summary` is empty for a run that has not ended."""

    name: str
    path: Path
    plan: dict[str, Any]
    rows: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def status(self) -> str:
        return str(self.summary.get("status", "not ended"))

    @property
    def metric(self) -> str:
        """The metric that it is watched by; while it is under way, the first that it reports."""
        flat = flat_rows(self.rows)
        known = [name for name in ("accuracy", "loss") if any(name in row for row in flat)]
        return str(self.summary.get("metric") or (known[0] if known else "train_loss"))


def read_run(path: str | Path) -> ReadRun:
    """A run that has ended, or one under way."""
    directory = RunDir(Path(path))
    directory.identity()
    try:
        plan = tomllib.loads((directory.path / "plan.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDirError(f"{directory.path / 'plan.toml'} cannot be read: {error}; expected it as it was") from None
    return ReadRun(directory.path.name, directory.path, plan, directory.rows(), read_summary(directory.path))


def read_summary(path: Path) -> dict[str, Any]:
    """The result of a run; empty if it has not ended, or its summary is damaged."""
    try:
        return unsealed(loads((path / "summary.json").read_bytes()))
    except (OSError, ValueError):
        return {}


def differing(plans: Sequence[Mapping[str, Any]]) -> list[str]:
    """Options that differ between the plans, in the order of the plan, without those that change no result.

    >>> differing([{"lr": 0.1, "E": 1, "workers": 1}, {"lr": 0.2, "E": 1, "workers": 2}])
    ['lr']
    """
    names = dict.fromkeys(name for plan in plans for name in plan if name not in RUNTIME)
    return [name for name in names if len({dumps(plan.get(name), sort_keys=True) for plan in plans}) > 1]


def along(rows: Sequence[Mapping[str, Any]], axis: str) -> np.ndarray:
    """The chosen axis at each round, shape (rounds,): rounds, bytes both ways, real or simulated seconds."""
    if axis == "round":
        return np.array([row["round"] for row in rows], float)
    return np.cumsum([sum(float(row.get(name) or 0.0) for name in AXES[axis]) for row in rows])


def comparison(runs: Sequence[ReadRun]) -> list[dict[str, Any]]:
    """One row for each run: the options that differ, and its result."""
    options = differing([run.plan for run in runs])
    return [_row(run, options) for run in runs]


def _row(run: ReadRun, options: Sequence[str]) -> dict[str, Any]:
    judged = {
        f"{kind} {name}": value
        for name, each in run.summary.get("metrics", {}).items()
        if "." not in name
        for kind, value in each.items()
    }
    return {
        "run": run.name,
        **{name: run.plan.get(name) for name in options},
        "status": run.status,
        "rounds": len(run.rows),
        **judged,
        "rounds_to_target": run.summary.get("rounds_to_target"),
        "bytes_up": sum(row["bytes_up"] for row in run.rows),
        "bytes_down": sum(row["bytes_down"] for row in run.rows),
        "seconds": sum(row["seconds"] + row["eval_seconds"] for row in run.rows),
    }


def runs(folder: str | Path = "runs") -> "pd.DataFrame":
    """Every run below a folder as a row: all options of its plan, its status, and its result.

    What cannot be read has a row that says why.

    >>> from tempfile import TemporaryDirectory
    >>> from fedavg import Plan, run
    >>> with TemporaryDirectory() as folder:
    ...     _ = run(Plan(data="mnist", C=0.02, rounds=1, workers=1), f"{folder}/a")
    ...     found = runs(folder)
    >>> found[["run", "status", "C"]].values.tolist()
    [['a', 'finished', 0.02]]
    """
    root = checked_path(folder, "runs", RunDirError)
    if not root.is_dir():
        raise RunDirError(f"runs: got {str(folder)!r}; expected a folder of run directories")
    return frame([_listed(path, root) for path in sorted(_below(root, DEPTH))])


def _below(folder: Path, depth: int) -> list[Path]:
    if (folder / "run.json").exists():
        return [folder]
    inside = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()] if depth else []
    return [found for path in inside for found in _below(path, depth - 1)]


def _listed(path: Path, root: Path) -> dict[str, Any]:
    name = str(path.relative_to(root))
    try:
        run = read_run(path)
    except RunDirError as error:
        return {"run": name, "status": f"cannot be read: {error}"}
    return {"run": name, **run.plan, **_row(run, ()), **{"run": name}}
