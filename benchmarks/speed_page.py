"""The page of `benchmarks/peers.py`: the record as tables, medians over the turns, ratios within each turn."""

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from musts import MUSTS, Turns, estimate_rows, memory_rows

PEERS = {"fedjax": "FedJAX", "pfl": "pfl-research, 2 processes", "flwr": "Flower (Ray, 2 actors)"}
NOTHING = "–"
OWN_HEADS = [
    "workload", "fedavg, s/round", "floor", "x floor", "plain, s/round", "x ours", "cold: fedavg, s/round",
    "plain, s/round", "x ours", "early", "x ours by cores", "plain x ours without kernels", "2 workers / 1",
]  # fmt: skip
HEAD = """# Speed

Made by `python benchmarks/peers.py --peers DIR` from [speed.json](speed.json); `fedavg bench W5` is one workload alone,
`fedavg bench --help` says what they are. What the engine does to be so fast, and what was tried, is in
[kernels.md](../kernels.md). Medians of the turns; in each turn everything runs one after the other on the same machine,
with two workers; Flower, runs without kernels and those with one worker are in the first turn alone. What must be
reached, and what is, stands [at the end](#musts).
"""
OURS = """
## Beside the floor and plain PyTorch

The floor is the time of only the matrix products and convolutions of the same steps on the same cores, as PyTorch does
them; below 1 x floor is what the engine's own kernels gain on them. Plain PyTorch is `loss.backward()` and
`torch.optim.SGD` in two single-threaded processes, on the same clients, without kernels of ours. Cold are
rounds 1 to 6, on average. Early is how many times as long rounds 2 to 10 take as those after them (of a short run,
the first two thirds). By cores is the ratio of the time on all cores, which other work on the machine changes less.
Without kernels is our own run with `FEDAVG_NATIVE=0`.
"""
THEIRS = """
## Beside other frameworks

Seconds a round, warm, and how many times as long as ours. Each framework's own federated averaging on the same clients
(`benchmarks/peer_scripts`), in as many processes as it uses on two cores; Flower draws its own cohorts. Their LSTM
(W4) has no peepholes, as none of them offers any.
"""
START = """
## Start and memory

Start to the end of round 1, and the peak of what each process has resident, added up (pages that processes share count
in each of them).
"""


def write(out: Path, turns: list[dict[str, Any]]) -> None:
    memory, estimates = (_record(out / f"{name}.json") for name in ("memory", "estimates"))
    (out / "speed.md").write_text(page(grouped(turns), memory, estimates))


def refresh(path: Path, turns: list[dict[str, Any]]) -> None:
    """Put the record's figures into the rows of a page."""
    path.write_text(refreshed(path.read_text(), grouped(turns)))


def _record(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def grouped(turns: list[dict[str, Any]]) -> Turns:
    return {name: [t for t in turns if t["workload"] == name] for name in dict.fromkeys(t["workload"] for t in turns)}


def page(turns: Turns, memory: dict[str, Any] | None, estimates: dict[str, Any] | None) -> str:
    lines = [
        HEAD,
        *(f"- {name}: {when_and_where(several)}" for name, several in turns.items()),
        OURS,
        table(
            OWN_HEADS,
            [own_row(name, several) for name, several in turns.items()],
        ),
        THEIRS,
        table(["workload", "fedavg", *PEERS.values()], [peers_row(name, several) for name, several in turns.items()]),
        *failures(turns),
        START,
        table(
            ["workload", "fedavg", "fedavg, PSS", "plain PyTorch", *PEERS.values()],
            [start_row(name, several) for name, several in turns.items()],
        ),
        *spawn(turns),
        "\n## Musts\n",
        table(["", "must", "measured", ""], must_rows(turns, memory, estimates)),
        "\nMemory is from [memory.json](memory.json) (`benchmarks/memory.py`), predictions from "
        "[estimates.json](estimates.json) (`benchmarks/estimates.py`); "
        "the prediction of memory has a constant that was chosen on these workloads; "
        "[performance.md](../performance.md) has others.\n",
    ]
    return "\n".join(lines)


def table(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows]).replace("| --- ", "|---")


def when_and_where(turns: list[dict[str, Any]]) -> str:
    last = max(turns, key=lambda turn: turn["date"])
    loads = [turn["load"] for turn in turns if "load" in turn]
    load = f", load at the start of a turn {min(loads)} to {max(loads)}" if loads else ""
    return f"{last['date']}, {len(turns)} turns, {last['machine']}{load}"


def values(turns: list[dict[str, Any]], run: str, field: str) -> list[float]:
    """The values of the turns that have the field."""
    found = [turn.get(run, {}).get(field) for turn in turns]
    return [value for value in found if value is not None]


def middle(turns: list[dict[str, Any]], run: str, field: str = "s_per_round", form: str = ".4f") -> str:
    found = values(turns, run, field)
    return f"{median(found):{form}}" if found else NOTHING


def times(turns: list[dict[str, Any]], above: str, below: str, field: str = "s_per_round") -> float | None:
    pairs = [(turn.get(above, {}).get(field), turn.get(below, {}).get(field)) for turn in turns]
    ratios = [a / b for a, b in pairs if a is not None and b]
    return median(ratios) if ratios else None


def as_times(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.2f} x"


def own_row(workload: str, turns: list[dict[str, Any]]) -> list[str]:
    return [
        workload,
        middle(turns, "fedavg"),
        middle(turns, "floor"),
        as_times(times(turns, "fedavg", "floor")),
        middle(turns, "plain"),
        as_times(times(turns, "plain", "fedavg")),
        middle(turns, "fedavg", "cold_s_per_round"),
        middle(turns, "plain", "cold_s_per_round"),
        as_times(times(turns, "plain", "fedavg", "cold_s_per_round")),
        middle(turns, "fedavg", "early_ratio", ".2f"),
        as_times(times(turns, "plain", "fedavg", "cpu_s_per_round")),
        as_times(times(turns, "plain", "no kernels")),
        as_times(times(turns, "one worker", "fedavg")),
    ]


def peers_row(workload: str, turns: list[dict[str, Any]]) -> list[str]:
    cells = [workload, middle(turns, "fedavg")]
    for peer in PEERS:
        ratio = times(turns, peer, "fedavg")
        cells.append(NOTHING if ratio is None else f"{middle(turns, peer, form='.3f')} ({ratio:.1f})")
    return cells


def failures(turns: Turns) -> list[str]:
    """What a framework could not run, in its own words."""
    said = [
        f"- {PEERS[peer]} on {name}: {' '.join(found[peer]['failed'].split())}"
        for name, several in turns.items()
        for peer in PEERS
        for found in several
        if "failed" in found.get(peer, {})
    ]
    return ["", "Not measured:", "", *dict.fromkeys(said)] if said else []


def start_row(workload: str, turns: list[dict[str, Any]]) -> list[str]:
    shares = values(turns, "fedavg", "peak_pss_mb")
    share = f"{max(shares):,.0f} MB" if any(shares) else NOTHING
    return [workload, start(turns, "fedavg"), share, *(start(turns, run) for run in ("plain", *PEERS))]


def start(turns: list[dict[str, Any]], run: str) -> str:
    starts, memory = values(turns, run, "startup_s"), values(turns, run, "peak_rss_mb")
    return f"{median(starts):.1f} s, {max(memory):,.0f} MB" if starts and memory else NOTHING


def spawn(turns: Turns) -> list[str]:
    known = {name: several for name, several in turns.items() if values(several, "spawn", "s_per_round")}
    return [
        f"\n{name} by `spawn`: {middle(several, 'spawn')} s/round, "
        f"{as_times(times(several, 'spawn', 'fedavg'))} that of `fork`; {start(several, 'spawn')}."
        for name, several in known.items()
    ]


def must_rows(turns: Turns, memory: dict[str, Any] | None, estimates: dict[str, Any] | None) -> list[list[str]]:
    rows = []
    for must in MUSTS:
        value = must.measured(turns)
        found = NOTHING if value is None else f"{value:.2f}{must.unit}"
        reached = NOTHING if value is None else verdict(must.holds(value))
        rows.append([must.what, f"{must.kind} {must.limit:g}{must.unit}", found, reached])
    others = (memory_rows(memory) if memory else []) + (estimate_rows(estimates) if estimates else [])
    return rows + [[what, limit, found, verdict(holds)] for what, limit, found, holds in others]


def verdict(holds: bool) -> str:
    return "reached" if holds else "**missed**"


def refreshed(text: str, turns: Turns) -> str:
    """Rows such as '| W1: 2NN, B=10 | 0.066 | 2.3 x | 3.1 x | 6.3 x |' with the record's figures."""

    def row(match: re.Match[str]) -> str:
        several = turns.get(match["name"], [])
        ratios = [times(several, peer, "fedavg") for peer in PEERS] if several else [None]
        if None in ratios:
            return match[0]
        ours = median(values(several, "fedavg", "s_per_round"))
        cells = [match["title"], f"{ours:.2g}" if ours < 1 else f"{ours:.2f}", *(f"{ratio:.1f} x" for ratio in ratios)]
        return f"| {' | '.join(cells)} |"

    pattern = r"^\| (?P<title>(?P<name>W\d+): [^|]*?) \| [\d.]+ \| [\d.]+ x \| [\d.]+ x \| [\d.]+ x \|$"
    return re.sub(pattern, row, text, flags=re.MULTILINE)
