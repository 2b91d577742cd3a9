"""The picture of a run: test accuracy by round, the monotone curve that the paper reads, and the target."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedavg.errors import FedAvgError
from fedavg.plan import Plan
from fedavg.runlog.curves import monotone, rounds_to_target
from fedavg.runlog.summary import curve


def plot_run(plan: Plan, rows: Sequence[dict[str, Any]], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise FedAvgError("plots need matplotlib, which is not installed: pip install 'fedavg[plots]'") from None
    shown = plan.to_dict()
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    rounds, accuracy = curve(rows)
    if accuracy:
        axes.plot(rounds, accuracy, color="#9db8d2", linewidth=1, label="test accuracy")
        axes.plot(rounds, monotone(accuracy), color="#1f4e79", linewidth=1.8, label="best so far")
        axes.set_ylabel("test accuracy")
    else:
        axes.plot([row["round"] for row in rows], [row["train_loss"] for row in rows], color="#1f4e79")
        axes.set_ylabel("training loss of the cohort")
    if plan.target:
        axes.axhline(plan.target, color="#888888", linestyle="--", linewidth=1, label=f"target {plan.target:g}")
        crossing = rounds_to_target(rounds, accuracy, plan.target)
        if crossing:
            axes.axvline(crossing, color="#c0504d", linestyle=":", label=f"reached after {crossing:.1f} rounds")
    axes.set_xlabel("round of communication")
    axes.set_title(
        f"{shown['task']}, {shown['algorithm']}, {shown['partition'] or 'own partition'}: "
        f"C={plan.C:g} E={plan.E} B={plan.B} lr={plan.lr}",
        fontsize=10,
    )
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", fontsize=9)
    figure.savefig(path, dpi=130)
