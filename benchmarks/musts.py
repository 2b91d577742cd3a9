"""The requirements of the engine as data, and whether they are met: each a figure of the records and a limit."""

from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

Turns = dict[str, list[dict[str, Any]]]
PEERS = ("fedjax", "pfl", "flwr")


@dataclass(frozen=True)
class Figure:
    """A number of a turn: its workload, who was measured, and which quantity."""

    workload: str
    run: str = "fedavg"
    field: str = "s_per_round"

    def of(self, turn: int, turns: Turns) -> float | None:
        for found in turns.get(self.workload, []):
            if found["turn"] == turn:
                value: float | None = found.get(self.run, {}).get(self.field)
                return value
        return None


@dataclass(frozen=True)
class Must:
    """A figure, or its ratio to another one of the same turn; the median over the turns is compared with the limit."""

    what: str
    above: Figure
    below: Figure | None
    kind: Literal["at least", "at most"]
    limit: float
    unit: str = " x"

    def measured(self, turns: Turns) -> float | None:
        """None if it was not measured."""
        numbers = sorted({found["turn"] for several in turns.values() for found in several})
        values = [value for value in (self._in_turn(turn, turns) for turn in numbers) if value is not None]
        return median(values) if values else None

    def _in_turn(self, turn: int, turns: Turns) -> float | None:
        above = self.above.of(turn, turns)
        if above is None or self.below is None:
            return above
        below = self.below.of(turn, turns)
        return None if not below else above / below

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.kind == "at least" else value <= self.limit


def faster(workload: str, than: str, limit: float, field: str = "s_per_round", how: str = "") -> Must:
    names = {"plain": "plain PyTorch", "fedjax": "FedJAX", "pfl": "pfl-research", "flwr": "Flower"}
    what = f"{workload}: {names[than]} takes{how}"
    return Must(what, Figure(workload, than, field), Figure(workload, "fedavg", field), "at least", limit)


def every_peer(workload: str, limit: float) -> list[Must]:
    return [faster(workload, peer, limit) for peer in PEERS]


def floor(workload: str, limit: float) -> Must:
    return Must(f"{workload}: over the floor", Figure(workload), Figure(workload, "floor"), "at most", limit)


def no_stall(workload: str) -> Must:
    return Must(f"{workload}: rounds 2 to 10 over warm", Figure(workload, field="early_ratio"), None, "at most", 1.15)


MUSTS = [
    floor("W1", 1.05),
    *every_peer("W1", 3.0),
    floor("W2", 1.2),
    *every_peer("W2", 1.5),
    *every_peer("W3", 3.0),
    faster("W4", "pfl", 1.6),
    faster("W5", "plain", 2.0),
    faster("W5", "plain", 1.5, "cold_s_per_round", " in rounds 1 to 6"),
    no_stall("W5"),
    Must(
        "W5: start to the end of round 1, over plain PyTorch's",
        Figure("W5", field="startup_s"), Figure("W5", "plain", "startup_s"), "at most", 1.5,
    ),
    faster("W6", "plain", 1.6),
    faster("W7", "plain", 3.0),
    no_stall("W7"),
    Must("W8: over W1", Figure("W8"), Figure("W1"), "at most", 1.2),
    faster("W9", "plain", 2.0),
    *every_peer("W10", 3.0),
    Must("W1 by spawn: over fork, warm", Figure("W1", "spawn"), Figure("W1"), "at most", 1.05),
    Must("W1 by spawn: start to the end of round 1", Figure("W1", "spawn", "startup_s"), None, "at most", 4.0, " s"),
    *(
        Must(f"W{n} without kernels in C: plain PyTorch takes", Figure(f"W{n}", "plain"), Figure(f"W{n}", "no kernels"),
             "at least", 1.0)
        for n in range(1, 11)
    ),
]  # fmt: skip


def memory_rows(record: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """What `benchmarks/memory.py` measured: what, must, measured, and whether it holds."""
    forked = {row["workers"]: row["peak_mb"] for row in record["process_trees"] if row["start_method"] == "fork"}
    further = max(forked[n + 1] - forked[n] for n in forked if n >= 2 and n + 1 in forked)
    crowds = {row["clients"]: row["peak_mb"] for row in record["clients"]}
    flat = crowds[100_000] / crowds[1_000]
    grown = max(max(row["growth_mb"]) for row in record["long_runs"] if not row["recorded"])
    rounds = max(row["rounds"] for row in record["long_runs"])
    return [
        ("W1: memory with 2 workers", "at most 350 MB", f"{forked[2]:.0f} MB", forked[2] <= 350),
        ("W1: memory of each further worker", "at most 60 MB", f"{further:.0f} MB", further <= 60),
        ("W10: memory with 100,000 clients over that with 1,000", "at most 1.1 x", f"{flat:.2f} x", flat <= 1.1),
        (f"{rounds:,} rounds of a tiny model: growth of a process", "at most 5 MB", f"{grown:.1f} MB", grown <= 5),
    ]


def estimate_rows(record: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """What `benchmarks/estimates.py` measured."""
    rows = []
    for field, what in (("ratio", "seconds a round"), ("ratio_mb", "peak memory")):
        found = {row["workload"]: row[field] for row in record["rows"]}
        good = [name for name, value in found.items() if 0.7 <= value <= 1.3]
        worst = max(found, key=lambda name: abs(found[name] - 1))
        measured = f"{len(good)} of {len(found)}; worst {worst} with {found[worst]} x"
        rows.append((f"--dry-run predicts {what}", "within 30 % on W1 to W10", measured, len(good) == len(found) == 10))
    return rows
