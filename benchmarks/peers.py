"""Every workload of `fedavg bench`, ours beside the bare products, plain PyTorch and other frameworks, in turns on one
machine; writes a record, a page made from it, and the rows of the README and of the comparison.

    benchmarks/peer_scripts/install DIR
    python benchmarks/peers.py --peers DIR [--turns 3] [--workloads W1,W3] [--rounds N] [--out docs/results]

DIR holds the other frameworks' environments; without it none of them is run. In each turn every workload is measured
once: the floor, our run, plain PyTorch in two processes, and the frameworks, all on the same clients; on W1 also our
run by `spawn`. What is far from its limit and takes long is measured only in the first turn: Flower, our run without
kernels in C, and with one worker on W1 and W3. The machine should be idle; three turns then take about 35 minutes.
Ratios are taken within a turn, then their median.

The record is written after each workload of a turn. Measurements of exactly this code are not repeated, so the same
command resumes a stopped measurement; when a workload is run again, its turns by other code are removed. `--rounds` is
for trying the command out with fewer rounds than a steady median needs: use another `--out`.
"""

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

import fedavg
import speed_page
from fedavg.bench.measure import floor_of, pace_of, watched
from fedavg.bench.workloads import ROUNDS, plan_of
from fedavg.cohorts import sample_cohort
from fedavg.engine.model import Model
from fedavg.errors import FedAvgError
from fedavg.optimizers import make_optimizer
from fedavg.setup import population_of, simulation

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
sys.path.append(str(HERE / "peer_scripts"))
import work  # noqa: E402

WORKERS = 2
#: Workloads on which one worker is timed too, to show that a second one helps.
SCALED = ("W1", "W3")
SPAWNED = ("W1",)
#: Rounds for a framework: fewer than for ours, whose rounds are shorter.
PEER_ROUNDS = {"W1": 10, "W2": 10, "W3": 4, "W4": 5, "W5": 14, "W6": 10, "W7": 10, "W8": 10, "W9": 8, "W10": 5}
#: Warm-up rounds. If client sizes differ, a few more, so that every length of a last batch occurs.
PEER_COLD, PEER_COLD_UNLIKE = 2, 6
UNLIKE = ("W5", "W6", "W7", "W9")
LIMIT_S = 120
#: Frameworks that are measured only in the first turn.
ONCE = ("flwr",)


@dataclass(frozen=True)
class Peer:
    program: str
    arguments: tuple[str, ...]


PEERS = {
    "fedjax": Peer("python", ("fedjax_rounds.py",)),
    "pfl": Peer("torchrun", ("--nproc_per_node=2", "--master_port=29511", "pfl_rounds.py")),
    "flwr": Peer("python", ("flwr_rounds.py",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="where peer_scripts/install put the environments")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--workloads", default=",".join(ROUNDS))
    parser.add_argument("--rounds", type=int, help="at most so many, to try the command out")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    workloads = options.workloads.split(",")
    if unknown := [name for name in workloads if name not in ROUNDS]:
        parser.error(f"unknown workloads {', '.join(unknown)}; expected some of {', '.join(ROUNDS)}")
    if options.peers and (missing := [name for name in PEERS if not (options.peers / name / ".ready").exists()]):
        parser.error(f"{options.peers} lacks {', '.join(missing)}; run {HERE / 'peer_scripts/install'} {options.peers}")
    turns = taken(options, workloads)
    speed_page.write(options.out, turns)
    if options.out.resolve() == PROJECT / "docs" / "results":
        for page in ("README.md", "docs/comparison.md"):
            speed_page.refresh(PROJECT / page, turns)


def taken(options: argparse.Namespace, workloads: list[str]) -> list[dict[str, Any]]:
    """The turns: from the record if they are of this code, else measured now."""
    options.out.mkdir(parents=True, exist_ok=True)
    record, code = options.out / "speed.json", digest()
    before: list[dict[str, Any]] = json.loads(record.read_text())["turns"] if record.exists() else []
    turns = [turn for turn in before if turn["workload"] not in workloads or turn.get("code") == code]
    done = {(turn["workload"], turn["turn"]) for turn in turns}
    for turn in range(options.turns):
        for workload in (name for name in workloads if (name, turn) not in done):
            load = round(os.getloadavg()[0], 2)
            where = {"date": f"{date.today()}", "machine": machine(), "load": load, "code": code}
            turns.append({"workload": workload, "turn": turn, **where, **one(options, workload, turn)})
            print(json.dumps(turns[-1]), flush=True)
            turns.sort(key=lambda turn: (int(turn["workload"][1:]), turn["turn"]))
            record.write_text(json.dumps({"turns": turns}, indent=1) + "\n")
    return turns


def digest() -> str:
    """The digest of all code that is timed."""
    package = Path(fedavg.__file__).parent
    sources = [path for kind in ("*.py", "*.c", "*.h") for path in package.rglob(kind)]
    sources += (HERE / "peer_scripts").glob("*.py")
    return sha256(b"".join(sha256(path.read_bytes()).digest() for path in sorted(sources))).hexdigest()[:16]


def machine() -> str:
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{len(names)} cores, {names[0]}, PyTorch {torch.__version__}, Python {platform.python_version()}"


def one(options: argparse.Namespace, workload: str, turn: int) -> dict[str, Any]:
    """All measurements of a workload in a turn, one after the other."""
    most = options.rounds or 1000
    rounds = min(ROUNDS[workload], most)

    def pace(what: str, workers: int = WORKERS, **how: Any) -> dict[str, Any]:
        return asdict(pace_of(what, workload, rounds, workers, **how))

    found: dict[str, Any] = {"floor": {"s_per_round": floor_of(workload, WORKERS)}, "fedavg": pace("run")}
    if workload in SPAWNED:
        found["spawn"] = pace("run", start_method="spawn")
    found["plain"] = pace("plain")
    if turn == 0:
        found["no kernels"] = pace("run", kernels=False)
    if turn == 0 and workload in SCALED:
        found["one worker"] = pace("run", 1)
    if options.peers:
        with TemporaryDirectory(prefix="fedavg-") as folder:
            path = Path(folder) / f"{workload}.npz"
            numbers = write_work(path, workload, min(PEER_ROUNDS[workload], most))
            asked = [peer for peer in PEERS if turn == 0 or peer not in ONCE]
            found |= {peer: of_peer(options.peers.absolute(), peer, path, workload, numbers) for peer in asked}
    return found


def write_work(path: Path, workload: str, rounds: int) -> int:
    """Write the input of the peers' scripts; returns how many numbers are trained."""
    plan = plan_of(workload, rounds, WORKERS)
    setup, data = simulation(plan)
    task, trained = setup.task, plan.work(1)
    clients = [data.client(k) for k in range(len(data.sizes))]
    x = torch.cat([client.x if task.collate else task.prepare(client.x) for client in clients])
    population = population_of(data)
    how = {
        "model": task.name,
        "batch": int(min(trained.batch, data.sizes.max())),
        "epochs": trained.epochs,
        "lr": trained.lr,
        "momentum": make_optimizer(plan.optimizer).momentum,
    }
    cohorts = [sample_cohort(plan, population, round) for round in range(1, rounds + 1)]
    work.write(path, data.sizes, x.numpy(), torch.cat([client.y for client in clients]).numpy(), cohorts, how)
    return len(Model(task, plan.seed).trainable)


def of_peer(home: Path, peer: str, path: Path, workload: str, numbers: int) -> dict[str, Any]:
    how = PEERS[peer]
    *options, script = how.arguments
    command = [str(home / peer / "bin" / how.program), *options, str(HERE / "peer_scripts" / script), str(path)]
    one_thread = {} if peer == "fedjax" else {"OMP_NUM_THREADS": "1"}  # FedJAX is one process that uses all cores
    try:
        answer, began, memory = watched(command, one_thread, LIMIT_S)
    except FedAvgError as error:
        return {"failed": str(error).replace(str(home), "DIR").replace(str(HERE), "benchmarks")[-600:]}
    if abs(answer["parameters"] / numbers - 1) > 0.01:  # LSTMs differ in their biases and peepholes
        return {"failed": f"it trains {answer['parameters']:,} numbers; expected {numbers:,}"}
    cold = min(PEER_COLD_UNLIKE if workload in UNLIKE else PEER_COLD, len(answer["seconds"]) - 1)
    return {
        "s_per_round": median(answer["seconds"][cold:]),
        "startup_s": answer["first_end"] - began,
        "peak_rss_mb": memory.rss,
        "losses": answer["losses"],
        "version": answer["version"],
    }


if __name__ == "__main__":
    main()
