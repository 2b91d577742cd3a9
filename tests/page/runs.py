"""Run directories written by the package's own writer, with rows that a test can know by heart."""

import os
from pathlib import Path
from typing import Any

from fedavg.plan import Plan
from fedavg.runlog.rundir import RunDir


def row(round: int, **changes: Any) -> dict[str, Any]:
    """Round t: accuracy 1 - 1/(t+1), one megabyte up and two down, a second of training, half a second simulated."""
    return {
        "round": round, "lr": 0.1, "clients": 10, "examples": 600.0, "train_loss": 2.0 / round, "bytes_up": 1_000_000,
        "bytes_down": 2_000_000, "simulated_s": 0.5, "seconds": 0.75, "eval_seconds": 0.25, "saturated": 0,
        "test": {"accuracy": 1 - 1 / (round + 1), "loss": 1.0 / round}, "train": None, **changes,
    }  # fmt: skip


def begin(path: Path, **options: Any) -> RunDir:
    """A run that has just begun."""
    plan = Plan(data="mnist", **{"rounds": 10, **options})
    run = RunDir(path)
    run.create(plan)
    run.write_identity(plan, "graph", "data", {})
    return run


def finished(path: Path, rounds: int = 10, **options: Any) -> RunDir:
    """A run that has come to its end."""
    run = begin(path, rounds=rounds, **options)
    run.write_rows([row(t) for t in range(1, rounds + 1)])
    run.write_json("summary.json", {"status": "finished", "rounds": rounds, "metric": "accuracy", "target": None})
    return run


def age(run: RunDir, seconds: float = 3600) -> None:
    """As if nobody had written to it for so long."""
    for path in run.path.iterdir():
        stat = path.stat()
        os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))
