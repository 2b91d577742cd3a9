"""Ours beside the bare products, plain PyTorch and the peers on the same work, in turns on one machine; writes a record
and a page made from it.

usage: python benchmarks/peers.py [--peers DIR] [--repeats 3] [--only W1,W3] [--out docs/results]

DIR holds the peers' scripts: `DIR/bench PEER WORKLOAD ROUNDS` prints one JSON line with `s_per_round`,
`ready_after_round1_s` and `peak_rss_mb`; a workload that a peer's script does not know counts as failed. Without DIR no
peer is run. Have the machine idle. Ratios are taken within a turn, then their median.

Each turn is written down when it is over. Turns that the record has of this very code are not run again, so what was
stopped goes on where it was; of a workload that is run anew, turns of other code go.
"""

import argparse
import json
import platform
import subprocess
from dataclasses import asdict
from datetime import date
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import torch

import fedavg
from fedavg.bench.measure import measure
from fedavg.bench.workloads import ROUNDS

PEERS = {"fedjax": "FedJAX", "pfl2": "pfl-research, 2 processes", "flwr": "Flower (Ray, 2 actors)"}
#: Workloads on which one worker is timed too, to see that a second one pays.
SCALED = ("W1", "W3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join(ROUNDS))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    record, code = options.out / "speed.json", digest()
    workloads = options.only.split(",")
    before: list[dict[str, Any]] = json.loads(record.read_text())["turns"] if record.exists() else []
    turns = [turn for turn in before if turn["workload"] not in workloads or turn.get("code") == code]
    done = {(turn["workload"], turn["repeat"]) for turn in turns}
    for repeat in range(options.repeats):
        for workload in workloads:
            if (workload, repeat) in done:
                continue
            where = {"date": f"{date.today()}", "machine": machine(), "code": code}
            turns.append({"workload": workload, "repeat": repeat, **where, **turn(options.peers, workload)})
            print(json.dumps(turns[-1]), flush=True)
            turns.sort(key=lambda turn: (int(turn["workload"][1:]), turn["repeat"]))
            record.write_text(json.dumps({"turns": turns}, indent=1) + "\n")
    (options.out / "speed.md").write_text(page(json.loads(record.read_text())))


def digest() -> str:
    """Of all code that is timed."""
    sources = sorted(path for kind in ("*.py", "*.c", "*.h") for path in Path(fedavg.__file__).parent.rglob(kind))
    return sha256(b"".join(sha256(path.read_bytes()).digest() for path in sources)).hexdigest()[:16]


def turn(peers: Path | None, workload: str) -> dict[str, Any]:
    rounds = ROUNDS[workload]
    result: dict[str, Any] = {"fedavg": asdict(measure(workload, rounds, workers=2, repeats=1))}
    if workload in SCALED:
        result["fedavg, 1 worker"] = asdict(measure(workload, rounds, workers=1, repeats=1))
    for peer in PEERS if peers else ():
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
        "Made by `python benchmarks/peers.py --peers DIR` from [speed.json](speed.json); `fedavg bench W5` is one",
        "workload alone. What the engine does to be so fast, and what was tried, is in [kernels.md](../kernels.md).",
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
        *plain_table({name: turns for name, turns in by_workload.items() if "plain" in turns[0]["fedavg"]}),
    ]
    return "\n".join(lines)


def plain_table(by_workload: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Ours beside plain PyTorch in as many processes, on the workloads that were timed so."""
    if not by_workload:
        return []
    return [
        "Plain PyTorch is `loss.backward()` and `torch.optim.SGD` in two single-threaded processes, same clients.",
        "Cold are rounds 1 to 6, on average; by cores is the time on all cores, which other work changes less.",
        "",
        "| workload | fedavg, s/round | x floor | plain, s/round (x ours) | cold: fedavg, s/round | plain (x ours) "
        "| x ours by cores | start to end of round 1, s | plain, s |",
        "|---" * 9 + "|",
        *(plain_row(name, [turn["fedavg"] for turn in turns]) for name, turns in by_workload.items()),
        "",
    ]


def plain_row(workload: str, turns: list[dict[str, Any]]) -> str:
    def middle(key: str) -> float:
        return median(turn[key] for turn in turns)

    plain = {key: median(turn["plain"][key] for turn in turns) for key in turns[0]["plain"]}
    cells = [
        workload, f"{middle('s_per_round'):.4f}", f"{middle('ratio_to_floor'):.2f}",
        f"{plain['s_per_round']:.4f} ({middle('plain_ratio'):.2f})", f"{middle('cold_s_per_round'):.4f}",
        f"{plain['cold_s_per_round']:.4f} ({middle('plain_cold_ratio'):.2f})", f"{middle('plain_cpu_ratio'):.2f}",
        f"{middle('startup_s'):.1f}", f"{plain['startup_s']:.1f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def measured(turns: list[dict[str, Any]]) -> str:
    """When and where."""
    last = max(turns, key=lambda turn: turn["date"])
    return f"{last['date']}, {len(turns)} turns, {last['machine']}"


def row(workload: str, turns: list[dict[str, Any]]) -> str:
    ours = [turn["fedavg"]["s_per_round"] for turn in turns]
    floor = [turn["fedavg"]["floor_s_per_round"] for turn in turns]
    cells = [workload, f"{median(ours):.4f}", f"{median(floor):.4f}", f"{ratio(ours, floor):.2f}"]
    for peer in PEERS:
        theirs = [turn.get(peer, {}).get("s_per_round") for turn in turns]
        cells.append("–" if None in theirs else f"{median(theirs):.3f} ({ratio(theirs, ours):.1f})")
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
        known = [turn[peer] for turn in turns if "s_per_round" in turn.get(peer, {})]
        starts = median(turn["ready_after_round1_s"] for turn in known) if known else float("nan")
        cells.append(f"{starts:.0f} s, {max(turn['peak_rss_mb'] for turn in known):,} MB" if known else "–")
    return "| " + " | ".join(cells) + " |"


def ratio(above: list[float], below: list[float]) -> float:
    return median(a / b for a, b in zip(above, below, strict=True))


if __name__ == "__main__":
    main()
