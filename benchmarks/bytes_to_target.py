"""How many bytes each codec takes to 97 % on MNIST with the 2NN (C=0.1, E=1, B=10), IID and shards.

Every run becomes a small JSON record; runs with a record are not repeated, and stopped runs are resumed. The table and
the figure are made from whatever records there are.

    python benchmarks/bytes_to_target.py [--partitions iid,shards] [--codecs NAME,...] [--rates 0.215,...] [--draw-only]
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from itertools import accumulate
from pathlib import Path
from shutil import rmtree

from fedavg import Plan, resume, run
from fedavg.errors import Diverged
from fedavg.files import write_atomically
from fedavg.runlog.curves import monotone, rounds_to_target
from fedavg.runlog.rundir import RunDir

DOCS = Path(__file__).parent.parent / "docs"
RECORDS = DOCS / "results/codecs"
FIGURES = DOCS / "results/figures"
#: Where runs are stored until they are finished.
RUNS = Path("runs/codecs")
#: The page that shows the table, and the markers around it there.
PAGE = DOCS / "communication.md"
BEGIN, END = "<!-- made by benchmarks/bytes_to_target.py -->", "<!-- end -->"
TARGET = 0.97
#: Clients of a round; they send in parallel, at this many bytes per second (the paper's §1: 1 MB/s or less).
CLIENTS = 10
UPLINK = 1e6
#: The best rate of plain FedAvg first, then those beside it.
RATES = {"iid": (0.215, 0.1, 0.464), "shards": (0.215, 0.1)}
#: The most rounds; plain FedAvg takes about 40 and 230.
CAPS = {"iid": 1500, "shards": 1500}
HEADS = ("up", "down", "MB up", "fewer", "s to send", "MB down", "fewer", "rounds", "eta", "rates")
#: Uplink and downlink codecs, the baseline first.
PAIRS = (
    ("float32", "float32"),
    ("stc:0.03", "float32"),
    ("stc:0.01", "float32"),
    ("stc:0.03", "stc:0.03"),
    ("topk:0.01", "float32"),
    ("quantise:4", "float32"),
    ("quantise:2", "float32"),
    ("mask:0.05:unbiased=false", "float32"),
    ("lowrank:16:unbiased=false", "float32"),
    ("stc:0.0025", "float32"),
    ("entropy:quantise:2", "float32"),
    ("quantise:1", "float32"),
    ("quantise:8", "float32"),
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("mask:0.25", "float32"),
    ("mask:0.05", "float32"),
    ("lowrank:64", "float32"),
    ("lowrank:16", "float32"),
    ("entropy:float32", "float32"),
)


@dataclass(frozen=True)
class Record:
    """One run: after each round the test accuracy and the bytes so far, over all clients."""

    partition: str
    codec: str
    downlink: str
    lr: float
    accuracy: tuple[float, ...]
    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]
    diverged: bool
    plan: str
    date: str

    @property
    def rounds(self) -> float | None:
        """Rounds to the target, read as in the paper (§3)."""
        return rounds_to_target(range(1, len(self.accuracy) + 1), self.accuracy, TARGET)

    @property
    def reached(self) -> bool:
        return self.rounds is not None

    @property
    def best(self) -> float:
        return max(self.accuracy, default=0.0)


def plan_of(partition: str, codec: str, downlink: str, lr: float) -> Plan:
    return Plan(
        task="mnist-2nn", data="mnist", partition=partition, C=0.1, E=1, B=10, lr=lr, codec=codec, downlink=downlink,
        rounds=CAPS[partition], target=TARGET, workers=1,
    )  # fmt: skip


def execute(partition: str, codec: str, downlink: str, lr: float, directory: Path) -> Record:
    """Start a run, or resume one that was stopped."""
    plan = plan_of(partition, codec, downlink, lr)
    diverged = False
    try:
        if (directory / "run.json").exists():
            resume(directory)
        else:
            run(plan, directory)
    except Diverged:
        diverged = True
    rows = RunDir(directory).rows()
    return Record(
        partition=partition, codec=codec, downlink=downlink, lr=lr,
        accuracy=tuple(round(row["test"]["accuracy"], 6) for row in rows),
        bytes_up=tuple(accumulate(row["bytes_up"] for row in rows)),
        bytes_down=tuple(accumulate(row["bytes_down"] for row in rows)),
        diverged=diverged, plan=plan.digest, date=f"{date.today()}",
    )  # fmt: skip


def path_of(partition: str, codec: str, downlink: str, lr: float) -> Path:
    name = "-".join([partition, codec, *([downlink] if downlink != "float32" else []), f"{lr:g}"])
    return RECORDS / f"{name.replace(':', '_')}.json"


def records() -> list[Record]:
    fields = ("accuracy", "bytes_up", "bytes_down")
    raw = [json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))]
    return [Record(**{**row, **{name: tuple(row[name]) for name in fields}}) for row in raw]


def wanted(options: argparse.Namespace) -> Iterator[tuple[str, str, str, float]]:
    """The first rate of everything, then the second, ..."""
    partitions = options.partitions.split(",")
    pairs = [pair for pair in PAIRS if not options.codecs or pair[0] in options.codecs.split(",")]
    rates = {p: [float(r) for r in options.rates.split(",")] if options.rates else RATES[p] for p in partitions}
    for turn in range(max(map(len, rates.values()))):
        for partition in partitions:
            for codec, downlink in pairs:
                if turn < len(rates[partition]):
                    yield partition, codec, downlink, rates[partition][turn]


def best_of(runs: list[Record], partition: str, pair: tuple[str, str]) -> Record | None:
    """The rate with the fewest bytes to the target; if none reaches it, the one that comes closest."""
    own = [run for run in runs if (run.partition, run.codec, run.downlink) == (partition, *pair)]
    reached = [run for run in own if run.reached]
    if reached:
        return min(reached, key=lambda run: run.bytes_up[-1])
    return max(own, key=lambda run: run.best, default=None)


def table(runs: list[Record]) -> str:
    """Bytes up to and including the round that reached the target."""
    lines: list[str] = []
    for partition in CAPS:
        base = best_of(runs, partition, PAIRS[0])
        chosen = [(pair, best_of(runs, partition, pair)) for pair in PAIRS]
        if not base or not base.reached:
            continue
        lines += ["", f"### {partition}", "", f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
        lines += [_row(pair, run, base, _rates(runs, partition, pair)) for pair, run in chosen if run]
    return "\n".join(lines)


def show(runs: list[Record]) -> None:
    """Put the table in its place on the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    write_atomically(PAGE, f"{before}{BEGIN}\n{table(runs)}\n\n{END}{after}".encode())


def _rates(runs: list[Record], partition: str, pair: tuple[str, str]) -> str:
    own = sorted(run.lr for run in runs if (run.partition, run.codec, run.downlink) == (partition, *pair))
    return ", ".join(f"{rate:g}" for rate in own)


def _row(pair: tuple[str, str], run: Record, base: Record, rates: str) -> str:
    if not run.reached:
        end = "diverged in" if run.diverged else "not in"
        outcome = f"– | – | – | – | – | {end} {len(run.accuracy)} (best {run.best:.2%})"
    else:
        up, down = run.bytes_up[-1], run.bytes_down[-1]
        fewer_up, fewer_down = base.bytes_up[-1] / up, base.bytes_down[-1] / down
        outcome = (
            f"{up / 1e6:,.1f} | {_times(fewer_up)} | {up / CLIENTS / UPLINK:,.1f} | {down / 1e6:,.1f} | "
            f"{_times(fewer_down)} | {run.rounds:.0f}"
        )
    return f"| {pair[0]} | {pair[1]} | {outcome} | {run.lr:g} | {rates} |"


def _times(ratio: float) -> str:
    return f"{ratio:.1f} ×" if ratio >= 1 else f"{ratio:.2f} ×"


def draw(runs: list[Record]) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.6, 4.6), layout="constrained")
    lines = {}
    for place, partition in enumerate(CAPS):
        axes = figure.add_subplot(1, len(CAPS), place + 1)
        for index, pair in enumerate(PAIRS):
            run = best_of(runs, partition, pair)
            if run and run.accuracy:
                label = pair[0] if pair[1] == "float32" else f"{pair[0]}, down {pair[1]}"
                x = [value / 1e6 for value in run.bytes_up]
                style = ("-", "--", ":")[index // 10]
                (lines[label],) = axes.plot(x, monotone(run.accuracy), style, color=f"C{index % 10}", linewidth=1.3)
        axes.axhline(TARGET, color="#888888", linewidth=0.8, linestyle=":")
        axes.set(xscale="log", ylim=(0.8, 0.98), title=f"MNIST 2NN, {partition}", xlabel="MB sent by clients, in all")
        axes.set_ylabel("test accuracy, best so far")
        axes.grid(alpha=0.25)
    figure.legend(lines.values(), lines, fontsize=7, loc="outside right center")
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / "accuracy_by_bytes.png", dpi=130)
    with rc_context({"svg.hashsalt": "accuracy_by_bytes"}):  # the same records give the same file
        figure.savefig(FIGURES / "accuracy_by_bytes.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", default="iid,shards")
    parser.add_argument("--codecs", default="", help="uplink codecs, as in the list above [all]")
    parser.add_argument("--rates", default="", help="learning rates [as in the list above]")
    parser.add_argument("--draw-only", action="store_true", help="only make the table and the figure anew")
    options = parser.parse_args()
    for folder in (RECORDS, RUNS):
        folder.mkdir(parents=True, exist_ok=True)
    for setting in wanted(options) if not options.draw_only else ():
        path = path_of(*setting)
        if not path.exists():
            record = execute(*setting, RUNS / path.stem)
            write_atomically(path, (json.dumps(asdict(record)) + "\n").encode())
            rmtree(RUNS / path.stem)
            print(path.stem, f"best {record.best:.4f} after {len(record.accuracy)} rounds", flush=True)
    runs = records()
    show(runs)
    draw(runs)


if __name__ == "__main__":
    main()
