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


def named(path: Path) -> RunDir:
    """Clients 3, 5 and 7 are asked in each of four rounds; 7 is late. They judge what they hold out."""
    who = {"client": [3, 5, 7], "outcome": ["reported", "reported", "late"], "norm": [1.0, 2.0, None],
           "cosine": [0.5, -0.25, None]}  # fmt: skip
    spread = {"accuracy": {"p10": 0.1, "p50": 0.5, "p90": 0.9, "variance": 0.1, "worst_decile": 0.05}}
    judged = {"clients": 3, "metrics": {"accuracy": 0.5}, "spread": spread, "bytes_up": 1, "bytes_down": 1,
              "worst": {"accuracy": {"client": [5], "value": [0.05]}}}  # fmt: skip
    run = begin(path, rounds=4, holdout=0.2)
    cohort = {"asked": 3, "missing": {"late": 1}, "who": who}
    run.write_rows([row(t, clients=2, cohort=cohort, on_clients=judged) for t in range(1, 5)])
    run.write_json("summary.json", {"status": "finished"})
    fake_data(run)
    return run


def fake_data(run: RunDir) -> None:
    """Say that the run was started on what its plan loads here."""
    from fedavg.setup import resolve_data

    run.write_json("run.json", run.identity() | {"data": resolve_data(run.plan()).fingerprint})


def private(path: Path) -> RunDir:
    """Half an epsilon a round, of 8."""
    stages = ["weigh:equal", "clip:1", "noise:1"]
    run = begin(path, rounds=4, stages=stages, dp_epsilon=8.0, dp_delta=1e-5, sampling="poisson")
    rows = [
        row(t, train_loss=None, epsilon=t / 2, ledger={"delta": 1e-5}, cohort={"asked": 9, "missing": {}}, clients=9)
        for t in range(1, 5)
    ]
    run.write_rows(rows)
    run.write_json("summary.json", {"status": "finished"})
    return run


def world(path: Path) -> RunDir:
    """Rounds of six hours each, the first begins at midnight: four on the first day, two on the second."""
    hour = 3600.0
    run = begin(path, rounds=6)
    rows = []
    for t in range(6):
        at = {"began_s": 6 * t * hour, "opened_s": (6 * t + 1) * hour, "closed_s": (6 * t + 6) * hour - 1}
        told = {"waited_s": hour, "there": 20 + t, "asked": 5, "reported": 4, "late": 1, "dropped": 0, "spent_s": 9.0,
                "wasted_s": 1.0, "groups": {"0": [12, 3, 2], "1": [8 + t, 2, 2]}}  # fmt: skip
        rows.append(row(t + 1, simulated_s=6 * hour, world=at | told))
    run.write_rows(rows)
    run.write_json("summary.json", {"status": "finished"})
    return run
