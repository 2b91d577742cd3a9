"""The CPU time of a round with two versions of the package, in turn, on any machine.

    git worktree add --detach ../before COMMIT
    python benchmarks/before_after.py ../before/src src --repeats 3 --out before_after.json [--only W1 --only kept ...]

W1 to W10 are those of the speed page; the versions themselves describe W5 and later. In the others clients keep as
much as a model, and the run is recorded: SCAFFOLD with the 2NN (kept), and ByzFL's setting, whose server also gets
single updates (single), with one worker.

It measures the CPU time of the server's process and its workers, not wall time, so that versions can be compared on a
busy machine. Turns alternate between the versions, and only ratios within a run mean anything.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

#: Rounds of a turn, and how many of the first are not counted. The last one is judged, and not counted either.
ROUNDS = {
    "W1": 16, "W2": 16, "W3": 6, "W4": 7, "W5": 16, "W6": 8, "W7": 6, "W8": 16, "W9": 8, "W10": 12, "kept": 16,
    "single": 31,
}  # fmt: skip
#: Those of `fedavg bench` that both versions describe themselves.
DESCRIBED = ("W5", "W6", "W7", "W8", "W9", "W10")
WARM = 2
RECORDED = ("kept", "single")
WORKERS = 2


def plan_of(workload: str):
    """Must work with both versions: only options that the older one has."""
    from dataclasses import replace

    from fedavg import Plan

    if workload == "single":
        from fedavg.study import robust

        plan = robust.plan_of(1.0, 4, "geomedian:0.1:3", "ipm:1.0")
        return replace(plan, rounds=ROUNDS[workload], eval_every=ROUNDS[workload], workers=1)
    if workload in DESCRIBED:
        from fedavg.bench.workloads import plan_of as workload_plan

        return workload_plan(workload, ROUNDS[workload], WORKERS)
    tasks = {
        "W1": ("mnist-2nn", "mnist", 0.1, 10),
        "W2": ("mnist-2nn", "mnist", 0.1, "inf"),
        "W3": ("mnist-cnn", "mnist", 0.1, 10),
        "W4": ("shakespeare-lstm", characters, 1.0, 10),
        "kept": ("mnist-2nn", "mnist", 0.1, 10),
    }
    task, data, share, batch = tasks[workload]
    rounds, source = ROUNDS[workload], data() if callable(data) else data
    plan = Plan(task=task, data=source, C=share, E=1, B=batch, rounds=rounds, eval_every=rounds, workers=WORKERS)
    return replace(plan, algorithm="scaffold") if workload == "kept" else plan


def characters():
    """10 clients x 50 sequences of 80 characters, half of which follow from the one before."""
    import numpy as np
    import torch

    from fedavg import ArrayData, Examples

    rng = np.random.default_rng(1234)
    follower, text = rng.permutation(86), np.empty((500, 81), np.int64)
    text[:, 0] = rng.integers(0, 86, 500)
    for t in range(80):
        known = rng.random(500) < 0.5
        text[:, t + 1] = np.where(known, follower[text[:, t]], rng.integers(0, 4, 500))
    x, y = torch.from_numpy(text[:, :-1].copy()), torch.from_numpy(text[:, 1:].copy())
    return ArrayData("characters", x, y, np.split(np.arange(500), 10), Examples(x[:50], y[:50]))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its children, from /proc."""
    own = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = {child for task in tasks for child in (task / "children").read_text().split()}
    return own / os.sysconf("SC_CLK_TCK") + sum(cpu_seconds(int(child)) for child in children)


def turn(workload: str) -> None:
    """Runs in its own process: CPU seconds of a round."""
    import fedavg

    spent: dict[int, float] = {}

    def note(event):
        spent[event.round] = cpu_seconds(os.getpid())

    with TemporaryDirectory() as folder:
        fedavg.run(plan_of(workload), Path(folder) / "run" if workload in RECORDED else None, note)
    last = ROUNDS[workload] - 1
    print(json.dumps((spent[last] - spent[WARM]) / (last - WARM)))


def measured(source: Path, workload: str) -> float:
    surroundings = {**os.environ, "PYTHONPATH": str(source.resolve())}
    told = subprocess.run(
        [sys.executable, __file__, "--turn", workload], env=surroundings, capture_output=True, text=True, check=True
    )
    return float(json.loads(told.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("after", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", action="append", choices=ROUNDS)
    parser.add_argument("--turn", choices=ROUNDS)
    options = parser.parse_args()
    if options.turn:
        turn(options.turn)
        return
    record = {}
    for workload in options.only or ROUNDS:
        pairs = []
        for _ in range(options.repeats):
            before, after = measured(options.before, workload), measured(options.after, workload)
            pairs.append((before, after))
            print(f"{workload}: {before:.4f} s before, {after:.4f} s after: {after / before:.3f}", file=sys.stderr)
        record[workload] = {
            "before_cpu_s": [round(before, 4) for before, _ in pairs],
            "after_cpu_s": [round(after, 4) for _, after in pairs],
            "ratio": round(median(after / before for before, after in pairs), 3),
        }
        if options.out:
            options.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
