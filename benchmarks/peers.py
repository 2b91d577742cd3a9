"""Ours beside the peers on the same work, in turns on one machine; writes a record and a page made from it.

usage: python benchmarks/peers.py --peers DIR [--repeats 3] [--only W1,W3] [--out docs/results]

DIR holds the peers' scripts: `DIR/bench PEER WORKLOAD ROUNDS` prints one JSON line with `s_per_round`,
`ready_after_round1_s` and `peak_rss_mb`. Have the machine idle. Ratios are taken within a turn, then their median.
With --only, what the record has of other workloads stays.
"""

import argparse
import json
import platform
import subprocess
from dataclasses import asdict
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fedavg.bench.measure import measure
from fedavg.bench.workloads import ROUNDS

PEERS = {"fedjax": "FedJAX", "pfl2": "pfl-research, 2 processes", "flwr": "Flower (Ray, 2 actors)"}
#: Workloads on which one worker is timed too, to see that a second one pays.
SCALED = ("W1", "W3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join(ROUNDS))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    record = options.out / "speed.json"
    workloads = options.only.split(",")
    before = json.loads(record.read_text())["turns"] if record.exists() else []
    turns: list[dict[str, Any]] = [turn for turn in before if turn["workload"] not in workloads]
    for repeat in range(options.repeats):
        for workload in workloads:
            where = {"date": f"{date.today()}", "machine": machine()}
            turns.append({"workload": workload, "repeat": repeat, **where, **turn(options.peers, workload)})
            print(json.dumps(turns[-1]), flush=True)
            turns.sort(key=lambda turn: (turn["workload"], turn["repeat"]))
            record.write_text(json.dumps({"turns": turns}, indent=1) + "\n")
    (options.out / "speed.md").write_text(page(json.loads(record.read_text())))


def turn(peers: Path, workload: str) -> dict[str, Any]:
    rounds = ROUNDS[workload]
    result: dict[str, Any] = {"fedavg": asdict(measure(workload, rounds, workers=2, repeats=1))}
    if workload in SCALED:
        result["fedavg, 1 worker"] = asdict(measure(workload, rounds, workers=1, repeats=1))
    for peer in PEERS:
        command = [str(peers / "bench"), peer, workload, str(rounds)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in answer.stdout.splitlines() if line.startswith("{")]
        result[peer] = json.loads(lines[-1]) if lines else {"failed": answer.stderr[-400:]}
    return result


def machine() -> str:
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{len(names)} cores, {names[0]}, PyTorch {torch.__version__}, Python {platform.python_version()}"


def page(record: dict[str, Any]) -> str:
    """The record as tables: medians over the turns, ratios within each turn."""
    workloads = list(dict.fromkeys(turn["workload"] for turn in record["turns"]))
    by_workload = {w: [turn for turn in record["turns"] if turn["workload"] == w] for w in workloads}
    lines = [
        "# Speed",
        "",
        "Made by `python benchmarks/peers.py` from [speed.json](speed.json).",
        "Medians of the turns; in each turn everything runs one after the other on the same machine.",
        "The floor is the time of only the matrix products and convolutions of the same steps on the same cores, as",
        "PyTorch does them; below 1 x floor is what the engine's own kernels gain on them.",
        "",
        *(f"- {name}: {measured(turns)}" for name, turns in by_workload.items()),
        "",
        "| workload | fedavg, s/round | floor | x floor | "
        + " | ".join(f"{name}, s/round (x ours)" for name in PEERS.values())
        + " | 2 workers / 1 |",
        "|---" * (5 + len(PEERS)) + "|",
        *(row(name, turns) for name, turns in by_workload.items()),
        "",
        "| workload | fedavg: start to end of round 1, s | memory, MB (each process's resident, added) | "
        + " | ".join(PEERS.values())
        + " |",
        "|---" * (3 + len(PEERS)) + "|",
        *(start_row(name, turns) for name, turns in by_workload.items()),
        "",
        "A peer's start and memory are as its own script reports them; pfl's leaves out one of its two processes.",
        "",
    ]
    return "\n".join(lines)


def measured(turns: list[dict[str, Any]]) -> str:
    """When and where."""
    last = max(turns, key=lambda turn: turn["date"])
    return f"{last['date']}, {len(turns)} turns, {last['machine']}"


def row(workload: str, turns: list[dict[str, Any]]) -> str:
    ours = [turn["fedavg"]["s_per_round"] for turn in turns]
    floor = [turn["fedavg"]["floor_s_per_round"] for turn in turns]
    cells = [workload, f"{median(ours):.4f}", f"{median(floor):.4f}", f"{ratio(ours, floor):.2f}"]
    for peer in PEERS:
        theirs = [turn[peer].get("s_per_round") for turn in turns]
        cells.append("failed" if None in theirs else f"{median(theirs):.3f} ({ratio(theirs, ours):.1f})")
    alone = [turn["fedavg, 1 worker"]["s_per_round"] for turn in turns if "fedavg, 1 worker" in turn]
    cells.append(f"{ratio(alone, ours):.2f} x" if alone else "–")
    return "| " + " | ".join(cells) + " |"


def start_row(workload: str, turns: list[dict[str, Any]]) -> str:
    cells = [
        workload,
        f"{median(turn['fedavg']['startup_s'] for turn in turns):.1f}",
        f"{max(turn['fedavg']['peak_rss_mb'] for turn in turns):.0f}",
    ]
    for peer in PEERS:
        known = [turn[peer] for turn in turns if "s_per_round" in turn[peer]]
        starts = median(turn["ready_after_round1_s"] for turn in known) if known else float("nan")
        cells.append(f"{starts:.0f} s, {max((turn['peak_rss_mb'] for turn in known), default=0):,} MB")
    return "| " + " | ".join(cells) + " |"


def ratio(above: list[float], below: list[float]) -> float:
    return median(a / b for a, b in zip(above, below, strict=True))


if __name__ == "__main__":
    main()
