"""What a run came to, from its rows alone."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from fedavg.plan import Plan
from fedavg.privacy.ledger import budget_spent
from fedavg.runlog.curves import rounds_to_target


@dataclass(frozen=True)
class Summary:
    """`rounds_to_target` is interpolated as in the paper (§3); `simulated_s` is upload time at the plan's uplink."""

    status: str
    rounds: int
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
    plan: str
    model_sha256: str
    run_dir: str | None
    #: The last entry of the ledger of a private run: epsilon, delta, and what they are a statement about.
    privacy: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "privacy" or value}


def curve(rows: Sequence[dict[str, Any]], metric: str = "accuracy", on: str = "test") -> tuple[list[int], list[float]]:
    """The rounds that were evaluated, and the metric there."""
    points = [(row["round"], row[on][metric]) for row in rows if row[on] and metric in row[on]]
    return [round for round, _ in points], [value for _, value in points]


def status_of(plan: Plan, rows: Sequence[dict[str, Any]], ended: bool = False) -> str:
    """`ended`: the algorithm itself needs no further round."""
    _, accuracy = curve(rows)
    if plan.target and accuracy and max(accuracy) >= plan.target:
        return "target reached"
    if rows and budget_spent(plan.dp_epsilon, rows[-1].get("ledger")):
        return "budget spent"
    return "finished" if ended or len(rows) >= plan.rounds else "stopped"


def summarise(
    plan: Plan,
    rows: Sequence[dict[str, Any]],
    *,
    ended: bool,
    parameters: int,
    engine: str,
    sha256: str,
    run_dir: str | None,
    spent: dict[str, Any] | None = None,
) -> Summary:
    rounds, accuracy = curve(rows)
    _, loss = curve(rows, "loss")
    return Summary(
        status="budget spent" if spent else status_of(plan, rows, ended),
        rounds=len(rows),
        target=plan.target,
        rounds_to_target=rounds_to_target(rounds, accuracy, plan.target) if plan.target else None,
        final_accuracy=accuracy[-1] if accuracy else None,
        best_accuracy=max(accuracy, default=None),
        final_loss=loss[-1] if loss else None,
        train_loss=rows[-1]["train_loss"] if rows else None,
        bytes_up=sum(row["bytes_up"] for row in rows),
        bytes_down=sum(row["bytes_down"] for row in rows),
        simulated_s=sum(row["simulated_s"] for row in rows),
        seconds_per_round=median(row["seconds"] for row in rows) if rows else None,
        seconds=sum(row["seconds"] + row["eval_seconds"] for row in rows),
        parameters=parameters,
        engine=engine,
        plan=plan.digest,
        model_sha256=sha256,
        run_dir=run_dir,
        privacy=spent or (rows[-1].get("ledger") if rows else None),
    )
