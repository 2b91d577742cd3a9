"""The result of a run, from its rows alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite, isnan, nan
from statistics import mean, median
from typing import Any

import numpy as np

from fedavg.engine.trainer import Engine
from fedavg.metrics import Metric
from fedavg.metrics.goal import Goal, improved, stalled
from fedavg.metrics.rows import by_clients, in_training, judged, watched
from fedavg.plan import Plan
from fedavg.privacy.ledger import budget_spent
from fedavg.runlog.curves import rounds_to_target
from fedavg.world.report import described


@dataclass(frozen=True)
class Summary:
    """`rounds_to_target` is interpolated as in the paper (§3); `simulated_s` is upload time at the plan's uplink."""

    status: str
    rounds: int
    #: The metric that the run is watched by: that of the target, or the task's first.
    metric: str
    target: float | None
    rounds_to_target: float | None
    final_accuracy: float | None
    best_accuracy: float | None
    final_loss: float | None
    train_loss: float | None
    bytes_up: int
    bytes_down: int
    simulated_s: float
    seconds_per_round: float | None
    seconds: float
    parameters: int
    engine: str
    #: Why that engine: 'auto' falls back to the slow, plain path if the fast one cannot be used.
    engine_reason: str
    plan: str
    model_sha256: str
    run_dir: str | None
    #: The last entry of the ledger of a private run: epsilon, delta, and what they are a statement about.
    privacy: dict[str, Any] | None = None
    #: Each metric at the end, and at its best if it is known which way is better.
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    #: How clients judged the last model that they were asked about.
    on_clients: dict[str, Any] | None = None
    #: For a run in a world: hours and bytes to the target, wasted work, who took part (`fedavg.world.report`).
    world: dict[str, Any] | None = None
    #: The round of the model in best.safetensors, and the value of the metric that chose it.
    best_model: dict[str, Any] | None = None
    #: For a partly frozen module: how many numbers are frozen, and the mean bytes a round (`up`, `down`) as they were
    #: and as they would be if all numbers were sent as float32 (`whole_up`, `whole_down`).
    frozen: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        seldom = ("privacy", "on_clients", "world", "best_model", "frozen")
        return {name: value for name, value in asdict(self).items() if value or name not in seldom}


def curves(rows: Sequence[dict[str, Any]]) -> tuple[list[int], dict[str, list[float]]]:
    """The rounds that were evaluated, and each metric there; NaN where a round lacks it."""
    points = [(row["round"], metrics) for row in rows if (metrics := judged(row))]
    names = dict.fromkeys(name for _, metrics in points for name in metrics)
    values = {name: [metrics.get(name, nan) for _, metrics in points] for name in names}
    return [round for round, _ in points], values


def training_curves(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """What cohorts measured in training, after every round; NaN where a round lacks it."""
    points = [in_training(row) for row in rows]
    names = dict.fromkeys(name for found in points for name in found)
    return {name: [found.get(name, nan) for found in points] for name in names}


def client_curves(rows: Sequence[dict[str, Any]]) -> tuple[list[int], dict[str, list[float]]]:
    """The same as judged by clients; the spread of a metric over clients is included as `accuracy.p10`."""
    points = [(row["round"], found) for row in rows if (found := by_clients(row))]
    names = dict.fromkeys(name for _, found in points for name in found)
    values = {name: [found.get(name, nan) for _, found in points] for name in names}
    return [round for round, _ in points], values


def curve(rows: Sequence[dict[str, Any]], metric: str = "accuracy") -> tuple[list[int], list[float]]:
    """The rounds for which a metric is known, by its name as in `metrics/rows.py`, and the metric there."""
    points = [(row["round"], watched(row, metric)) for row in rows]
    known = [(round, value) for round, value in points if value is not None and isfinite(value)]
    return [round for round, _ in known], [value for _, value in known]


def status_of(plan: Plan, rows: Sequence[dict[str, Any]], goal: Goal, ended: bool = False) -> str:
    """`ended`: the algorithm itself needs no further round."""
    if any(goal.reached(value) for value in curve(rows, goal.metric)[1]):
        return "target reached"
    if rows and budget_spent(plan.dp_epsilon, rows[-1].get("ledger")):
        return "budget spent"
    if ended or len(rows) >= plan.rounds:
        return "finished"
    best = None
    for row in rows:
        if (value := watched(row, goal.metric)) is not None:
            best = improved(goal, best, row["round"], value)
    return "no improvement" if best and stalled(goal, best, len(rows)) else "stopped"


def summarise(
    plan: Plan,
    rows: Sequence[dict[str, Any]],
    *,
    metrics: Mapping[str, Metric],
    goal: Goal,
    ended: bool,
    parameters: int,
    frozen: int,
    engine: Engine,
    sha256: str,
    run_dir: str | None,
    spent: dict[str, Any] | None = None,
    reported: np.ndarray | None = None,
    ended_by: str | None = None,
    best_model: dict[str, Any] | None = None,
) -> Summary:
    found = {name: _final_and_best(values, metrics.get(name)) for name, values in curves(rows)[1].items()}
    crossed = None
    if goal.target is not None:
        crossed = rounds_to_target(*curve(rows, goal.metric), goal.target, bool(goal.higher_is_better))
    asked = [row["on_clients"] for row in rows if row.get("on_clients")]
    return Summary(
        status="budget spent" if spent else ended_by or status_of(plan, rows, goal, ended),
        rounds=len(rows),
        metric=goal.metric,
        target=goal.target,
        rounds_to_target=crossed,
        final_accuracy=found.get("accuracy", {}).get("final"),
        best_accuracy=found.get("accuracy", {}).get("best"),
        final_loss=found.get("loss", {}).get("final"),
        train_loss=rows[-1]["train_loss"] if rows else None,
        bytes_up=sum(row["bytes_up"] for row in rows),
        bytes_down=sum(row["bytes_down"] for row in rows),
        simulated_s=sum(row["simulated_s"] for row in rows),
        seconds_per_round=median(row["seconds"] for row in rows) if rows else None,
        seconds=sum(row["seconds"] + row["eval_seconds"] for row in rows),
        parameters=parameters,
        engine=engine.name,
        engine_reason=engine.reason,
        plan=plan.digest,
        model_sha256=sha256,
        run_dir=run_dir,
        privacy=spent or (rows[-1].get("ledger") if rows else None),
        metrics=found,
        on_clients=asked[-1] if asked else None,
        world=_in_world(rows, crossed, reported),
        best_model=best_model,
        frozen=_beside_frozen(rows, parameters, frozen),
    )


def _beside_frozen(rows: Sequence[dict[str, Any]], parameters: int, frozen: int) -> dict[str, Any] | None:
    """What a round sent, and what it would have sent with all numbers; None if nothing is frozen."""
    if not frozen or not rows:
        return None
    up, down = (round(mean(row[name] for row in rows)) for name in ("bytes_up", "bytes_down"))
    whole = round(mean(row["clients"] for row in rows) * 4 * (parameters + frozen))
    return {"numbers": frozen, "up": up, "down": down, "whole_up": whole, "whole_down": whole}


def _in_world(
    rows: Sequence[dict[str, Any]], crossed: float | None, reported: np.ndarray | None
) -> dict[str, Any] | None:
    """The result of the run on the simulated clock; `crossed` is the round at which it reached its target."""
    timed = [row["world"] for row in rows if row.get("world")]
    if not timed:
        return None
    found = described(timed, reported)
    if crossed is not None:
        rounds = [0, *(row["round"] for row in rows)]
        hours = [0.0, *(row["closed_s"] / 3600 for row in timed)]
        sent = np.cumsum([0, *(row["bytes_up"] + row["bytes_down"] for row in rows)])
        found |= {"hours_to_target": float(np.interp(crossed, rounds, hours))}
        found |= {"bytes_to_target": int(np.interp(crossed, rounds, sent))}
    return found


def _final_and_best(values: Sequence[float], metric: Metric | None) -> dict[str, float]:
    """A detail of a metric, such as the accuracy of one class, has no best of its own."""
    found = {} if isnan(values[-1]) else {"final": values[-1]}
    known = [value for value in values if not isnan(value)]
    if known and metric and metric.higher_is_better is not None:
        found["best"] = max(known) if metric.higher_is_better else min(known)
    return found
