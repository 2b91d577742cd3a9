"""The summary of a run, for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedavg.runlog.progress import clock
from fedavg.runlog.summary import Summary
from fedavg.study.sweep import Entry, SweepResult
from fedavg.study.sweep.points import shown
from fedavg.study.sweep.tally import Span


def print_summary(summary: Summary, picture: Path | None) -> None:
    table = Table(box=box.SIMPLE, show_header=False, title=f"{summary.status} after {summary.rounds} rounds")
    for name, value in summary_rows(summary, picture):
        table.add_row(name, value)
    Console(width=max(100, Console().width)).print(table)


def _privacy(entry: dict[str, Any]) -> str:
    seeded = "; seeded noise protects nobody" if entry["noise"] == "seeded" else ""
    return f"epsilon {entry['epsilon']:.3f} at delta {entry['delta']:.1e} ({entry['relation']}){seeded}"


def _ended(values: dict[str, float]) -> str:
    final = f"{values['final']:.4f}" if "final" in values else "not a number"
    return f"{final} at the end" + (f", best {values['best']:.4f}" if "best" in values else "")


def over_clients(on_clients: dict[str, Any] | None) -> list[tuple[str, str]]:
    """How the last model does on what clients hold out."""
    if on_clients is None:
        return []
    count = on_clients["clients"]
    if not on_clients["spread"]:
        values = ", ".join(f"{name} {value:.4f}" for name, value in on_clients["metrics"].items() if "." not in name)
        return [(f"on {count} clients", f"{values} together; their spread stays hidden under secure aggregation")]
    return [
        (
            f"{name} on {count} clients",
            f"{on_clients['metrics'].get(name, float('nan')):.4f}; 10 % of clients below {spread['p10']:.4f}, "
            f"half below {spread['p50']:.4f}, 90 % below {spread['p90']:.4f}"
            + (f"; worst tenth {spread['worst_decile']:.4f}" if "worst_decile" in spread else ""),
        )
        for name, spread in on_clients["spread"].items()
    ]


def summary_rows(summary: Summary, picture: Path | None) -> list[tuple[str, str]]:
    rows = []
    if summary.target is not None:
        crossed = summary.rounds_to_target
        reached = f"{crossed:.1f} (interpolated as in the paper)" if crossed is not None else "not reached"
        goal = f"{summary.target:.2%}" if summary.metric == "accuracy" else f"{summary.metric} {summary.target:g}"
        rows.append((f"rounds to {goal}", reached))
    rows += [(name, _ended(values)) for name, values in summary.metrics.items() if "." not in name]
    if not summary.metrics:
        rows.append(("evaluated", "not at all: the data has no test set, and no client holds examples out"))
    rows += over_clients(summary.on_clients)
    if summary.privacy:
        rows.append(("privacy", _privacy(summary.privacy)))
    pace = f"{summary.seconds_per_round:.3f} s a round (median), " if summary.seconds_per_round is not None else ""
    rows += [
        ("sent", f"{summary.bytes_up / 1e6:,.1f} MB up, {summary.bytes_down / 1e6:,.1f} MB down"),
        *_clock_rows(summary),
        ("time", f"{pace}{summary.seconds:.1f} s in all"),
        *_beside_frozen(summary),
        ("model", f"{summary.parameters:,} numbers, sha256 {summary.model_sha256[:16]}…"),
        ("engine", summary.engine + (f" ({summary.engine_reason})" if summary.engine_reason else "")),
        ("run directory", str(summary.run_dir)),
    ]
    return [*rows, ("picture", str(picture))] if picture else rows


def _beside_frozen(summary: Summary) -> list[tuple[str, str]]:
    if summary.frozen is None:
        return []
    sent, whole = (summary.frozen[each] / 1e6 for each in ("up", "whole_up"))
    times = f", {whole / sent:,.0f} times as much" if sent else ""
    return [
        ("sent a round", f"{sent:,.2f} MB up; the whole model would be {whole:,.2f} MB{times}"),
        ("frozen", f"{summary.frozen['numbers']:,} numbers that never travel"),
    ]


def _clock_rows(summary: Summary) -> list[tuple[str, str]]:
    if not summary.world:
        return [("simulated clock", f"{clock(summary.simulated_s)} of upload at the plan's uplink")]
    world = summary.world
    shares = ", ".join(f"{name} {share:.0%}" for name, share in world["groups"].items())
    return [
        ("simulated clock", f"{clock(summary.simulated_s)} in the plan's world"),
        (
            "in the world",
            f"{world['asked']:,} asked, {world['late']:.1%} late, {world['dropped']:.1%} dropped out; "
            f"{world['wasted']:.1%} of the clients' time wasted"
            + (f"; {world['never']:,} clients never took part" if "never" in world else ""),
        ),
        *([("reports by group", shares)] if len(world["groups"]) > 1 else []),
        *_target_rows(world),
    ]


def _target_rows(world: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What it took to reach the plan's target, if it was reached, and how old updates of an asynchronous run were."""
    rows = []
    if world.get("hours_to_target") is not None:
        sent = world["bytes_to_target"] / 1e6
        rows.append(("to the target", f"{world['hours_to_target']:.3g} simulated hours, {sent:,.1f} MB"))
    if "staleness" in world:
        rows.append(("staleness", f"{world['staleness']:.1f} rounds on average"))
    return rows


def print_sweep(result: SweepResult, picture: Path | None) -> None:
    """One line for each point, the best first."""
    best = result.entries[0].status == "done"
    table = Table(box=box.SIMPLE, title=f"best: {result.best.name}" if best else "no point is done yet")
    names = list(result.entries[0].settings)
    target = [f"rounds to {result.goal.target:g}"] if result.goal.target is not None else []
    for name in [*names, f"best {result.goal.metric}", "at the end", *target, "rounds", "seeds", ""]:
        table.add_column(name, justify="left" if name in ("", *names) else "right")
    for entry in result.entries:
        table.add_row(*_sweep_row(entry, bool(target)))
    console = Console(width=max(100, Console().width))
    console.print(table)
    console.print(f"runs and records in {result.directory}" + (f", picture {picture}" if picture else ""))


def _sweep_row(entry: Entry, with_target: bool) -> list[str]:
    rounds = [_span(entry.rounds_to_target, ".1f")] if with_target else []
    note = entry.status if not entry.reason else f"{entry.status} {entry.reason}"
    numbers = [_span(entry.best, ".4f"), _span(entry.final, ".4f"), *rounds, str(entry.rounds), str(entry.seeds)]
    return [*(shown(value) for value in entry.settings.values()), *numbers, note]


def _span(span: Span | None, form: str) -> str:
    """The mean, and the range if there are several seeds."""
    if span is None:
        return "–"
    if span.low == span.high:
        return format(span.mean, form)
    return f"{span.mean:{form}} ({span.low:{form}}–{span.high:{form}})"
