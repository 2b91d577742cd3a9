"""The summary of a run, for people."""

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedavg.cli.progress import clock
from fedavg.runlog.summary import Summary


def print_summary(summary: Summary, picture: Path | None) -> None:
    table = Table(box=box.SIMPLE, show_header=False, title=f"{summary.status} after {summary.rounds} rounds")
    for name, value in summary_rows(summary, picture):
        table.add_row(name, value)
    Console(width=max(100, Console().width)).print(table)


def _privacy(entry: dict[str, Any]) -> str:
    seeded = "; seeded noise protects nobody" if entry["noise"] == "seeded" else ""
    return f"epsilon {entry['epsilon']:.3f} at delta {entry['delta']:.1e} ({entry['relation']}){seeded}"


def summary_rows(summary: Summary, picture: Path | None) -> list[tuple[str, str]]:
    rows = []
    if summary.target is not None:
        crossed = summary.rounds_to_target
        reached = f"{crossed:.1f} (interpolated as in the paper)" if crossed is not None else "not reached"
        rows.append((f"rounds to {summary.target:.2%}", reached))
    if summary.final_accuracy is not None and summary.best_accuracy is not None:
        rows.append(("test accuracy", f"{summary.final_accuracy:.4f} at the end, best {summary.best_accuracy:.4f}"))
    if summary.final_loss is not None:
        rows.append(("test loss", f"{summary.final_loss:.4f}"))
    if summary.privacy:
        rows.append(("privacy", _privacy(summary.privacy)))
    pace = f"{summary.seconds_per_round:.3f} s a round (median), " if summary.seconds_per_round is not None else ""
    rows += [
        ("sent", f"{summary.bytes_up / 1e6:,.1f} MB up, {summary.bytes_down / 1e6:,.1f} MB down"),
        ("simulated clock", f"{clock(summary.simulated_s)} of upload at the plan's uplink"),
        ("time", f"{pace}{summary.seconds:.1f} s in all"),
        ("model", f"{summary.parameters:,} numbers, sha256 {summary.model_sha256[:16]}…"),
        ("engine", summary.engine),
        ("run directory", str(summary.run_dir)),
    ]
    return [*rows, ("picture", str(picture))] if picture else rows
