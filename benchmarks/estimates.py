"""What `--dry-run` predicts for the benchmark's workloads, beside what they really take.

Each workload is predicted in its own process, then run for as many rounds as the benchmark times. Two times are
compared: by the clock, and the time on all cores divided by the workers, which other work on the machine changes less;
on an idle machine they are the same. Memory is the peak of the process tree, as `benchmarks/memory.py` counts it.
`ratio` is predicted over measured. The record is written after each workload; rows of workloads that are not requested
stay in it. If it is written to docs/results, the table of docs/performance.md is updated too. `--held-out` takes plans
that the model was never fitted to (held_out.py) in place of the workloads.

    python benchmarks/estimates.py [W1 W2 ...] [--workers 2] [--out docs/results/estimates.json]
    python benchmarks/estimates.py --held-out [X1 ...] [--workers 2] [--out docs/results/estimates_held_out.json]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from threading import Event, Thread
from typing import Any

import held_out
from fedavg.bench.child import our_rounds
from fedavg.bench.workloads import ROUNDS, plan_of
from fedavg.machine import cores
from fedavg.plan import Plan
from fedavg.study.estimate import derive
from memory import used

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
#: Rounds before those that count.
COLD = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=["predict", "run"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        (name,) = options.workloads
        print(json.dumps(CHILDREN[options.child](plan_for(name, options.workers))))
    else:
        compare(chosen(options.workloads, options.held_out), options.workers, options.out)


def chosen(asked: list[str], held: bool) -> list[str]:
    """The full names of the requested ones; all of their kind if none is requested."""
    known = list(held_out.PLANS if held else ROUNDS)
    return [name for name in known if name.partition(":")[0] in asked] if asked else known


def compare(names: list[str], workers: int, out: Path | None) -> None:
    known = json.loads(out.read_text())["rows"] if out and out.exists() else []
    rows = {row["workload"]: row for row in known}
    for name in names:
        rows[name] = compared(name, workers)
        print(json.dumps(rows[name]), flush=True)
        if out:
            ordered = [rows[name] for name in (*ROUNDS, *held_out.PLANS) if name in rows]
            out.write_text(json.dumps({"workers": workers, "rows": ordered}, indent=1) + "\n")
            if out.resolve().parent == PAGE.parent / "results":
                PAGE.write_text(refreshed(PAGE.read_text(), rows))


def plan_for(name: str, workers: int) -> Plan:
    return plan_of(name, ROUNDS[name], workers) if name in ROUNDS else held_out.plan_of(name, workers)


def run(plan: Plan) -> dict[str, list[float]]:
    rounds = list(our_rounds(plan))
    return {"seconds": [each.seconds for each in rounds], "cpu_seconds": [each.cpu_seconds for each in rounds]}


#: What a separate process does for a plan.
CHILDREN: dict[str, Callable[[Plan], dict[str, Any]]] = {"predict": derive, "run": run}


def refreshed(text: str, rows: dict[str, dict[str, Any]]) -> str:
    """Rows such as '| W1 | 0.94 | 1.01 |' with the record's ratios."""
    for name, row in rows.items():
        cells = f"| {name} | {row['ratio_on_cores']:.2f} | {row['ratio_mb']:.2f} |"
        text = re.sub(rf"^\| {re.escape(name)} \| [\d.]+ \| [\d.]+ \|$", cells, text, flags=re.MULTILINE)
    return text


def compared(name: str, workers: int) -> dict[str, Any]:
    child = [sys.executable, __file__, name, "--workers", str(workers), "--child"]
    (predicted, _), (truth, peak_mb) = answer([*child, "predict"]), answer([*child, "run"])
    # The last round evaluates.
    clock, on_cores = median(truth["seconds"][COLD:-1]), fmean(truth["cpu_seconds"][COLD:-1]) / workers
    seconds, memory = predicted["estimated_s_per_round"], predicted["estimated_peak_mb"]
    return {
        "workload": name,
        "predicted_s": seconds,
        "measured_s": round(clock, 4),
        "measured_on_cores_s": round(on_cores, 4),
        "ratio": round(seconds / clock, 2),
        "ratio_on_cores": round(seconds / on_cores, 2),
        "predicted_mb": memory,
        "measured_mb": round(peak_mb),
        "ratio_mb": round(memory / peak_mb, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def answer(command: list[str]) -> tuple[dict[str, Any], float]:
    """What a process prints as JSON, and the peak of its tree's memory."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        watch = Watch(process.pid)
        watch.start()
        output, _ = process.communicate()
        watch.stop()
    assert process.returncode == 0, command
    return json.loads(output), watch.peak_mb


class Watch(Thread):
    """Samples the memory of a process tree, rarely enough not to slow it down."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._end = pid, Event()
        self.peak_mb = 0.0

    def run(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            self.peak_mb = max(self.peak_mb, used(self._pid).total)
            self._end.wait(max(0.3, 10 * (time.monotonic() - began)))

    def stop(self) -> None:
        self._end.set()
        self.join()


if __name__ == "__main__":
    main()
