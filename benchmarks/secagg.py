"""What secure aggregation costs: bytes and CPU seconds per client and for the server; writes a record and a table.

usage: python benchmarks/secagg.py [--part complete|sparse|acceptance] [--out docs] [--quick]

Every row is one whole session of real messages in one process: n clients with d parameters, of which 10 % vanish after
sharing their keys and before sending their input. That is the most expensive point to vanish: the server has to rebuild
all of their masks. CPU seconds are `time.process_time` of a single-threaded process; a client's include encoding its
update, the server's include decoding the sum. The acceptance case, 100 clients with the paper's CNN, is run three
times.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from secrets import token_bytes
from statistics import median
from time import process_time
from typing import Any, TypeVar

import numpy as np

from fedavg import seeds
from fedavg.secagg import Encoding, SessionStep, Terms, simulate

T = TypeVar("T")
#: Parameters of the CNN of McMahan et al. 2017, §3.
CNN = 1_663_370
DROPPED = 0.1
#: The rates of colluding and dropping clients that the sparse graph is made for: the measured dropout with some margin.
RATES = (0.05, 0.15)
#: The limits of the acceptance case: seconds of a client and of the server, upload over 32-bit plain.
LIMITS = {"client_s": 0.5, "server_s": 5.0, "expansion": 1.3}
#: What is measured: clients, parameters, and the rates of a sparse graph.
PARTS: dict[str, list[tuple[int, int, tuple[float, float] | None]]] = {
    "complete": [(n, d, None) for d in (10_000, 100_000, CNN) for n in (10, 50, 100, 200) if n * d < 200 * CNN],
    "sparse": [*((n, d, RATES) for d in (10_000, 100_000, CNN) for n in (100, 200)), (1000, 100_000, RATES)],
    "acceptance": [(100, CNN, None)] * 3,
}
BEGIN, END = "<!-- costs: made by benchmarks/secagg.py -->", "<!-- end of costs -->"


@dataclass(frozen=True)
class Row:
    """One session. Client figures are medians over those that stayed to the end; expansion is over 4 d bytes."""

    graph: str
    n: int
    d: int
    degree: int
    threshold: int
    client_s: float
    client_worst_s: float
    server_s: float
    client_up: int
    client_down: int
    server_up: int
    server_down: int
    expansion: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="measure this part again, keep the others")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--quick", action="store_true", help="two small sessions; nothing is written")
    options = parser.parse_args()
    if options.quick:
        print(*(measure(*case) for case in [(10, 10_000, None), (100, 10_000, RATES)]), sep="\n")
        return
    for name in options.part or PARTS:
        rows = [shown(measure(*case)) for case in PARTS[name]]
        part = {"date": f"{date.today()}", "machine": machine(), "rows": [asdict(row) for row in rows]}
        record = keep(options.out / "results" / "secagg.json", name, part)
    write_page(options.out / "secagg.md", record)


def keep(path: Path, name: str, part: dict[str, Any]) -> dict[str, Any]:
    """Put one part into the record."""
    parts = json.loads(path.read_text())["parts"] if path.exists() else {}
    conditions = {"dropped": DROPPED, "dropped_in": SessionStep.INPUTS.name, "sparse_rates": RATES, "limits": LIMITS}
    record = conditions | {"parts": parts | {name: part}}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return record


def write_page(page: Path, record: dict[str, Any]) -> None:
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{tables(record)}\n{END}{after}")


def measure(n: int, d: int, sparse: tuple[float, float] | None) -> Row:
    """One session over random updates; its result is checked against the plain sum."""
    encoding = Encoding(n, d, clip=1.0, weight_cap=600, metrics=("train_loss",))
    terms = Terms(token_bytes(16), 1, token_bytes(32), encoding, sparse=sparse)
    vector = seeds.rng(0, 1, 0, "update").normal(0, 0.01, d).astype(np.float32)
    ring, encoding_s = timed(lambda: encoding.encode(vector, 600, {"train_loss": 1.0}).ring)
    lost = range(round(DROPPED * n))
    outcome = simulate(terms, range(n), lambda _: ring, dict.fromkeys(lost, SessionStep.INPUTS), clock=process_time)
    survivors = [outcome.clients[client] for client in outcome.aggregate.survivors]
    if not np.array_equal(outcome.aggregate.ring, ring * ring.dtype.type(len(survivors))):
        raise SystemExit("the secure sum is not the plain sum")
    _, decoding_s = timed(lambda: encoding.decode(outcome.aggregate.ring, len(survivors)))
    seconds = [encoding_s + costs.seconds for costs in survivors]
    return Row(
        graph="sparse" if sparse else "complete",
        n=n,
        d=d,
        degree=terms.topology.degree,
        threshold=terms.topology.threshold,
        client_s=median(seconds),
        client_worst_s=max(seconds),
        server_s=outcome.server_seconds + decoding_s,
        client_up=max(costs.bytes_up for costs in survivors),
        client_down=max(costs.bytes_down for costs in survivors),
        server_up=sum(costs.bytes_up for costs in outcome.clients.values()),
        server_down=sum(costs.bytes_down for costs in outcome.clients.values()),
        expansion=max(costs.bytes_up for costs in survivors) / (4 * d),
    )


def timed(act: Callable[[], T]) -> tuple[T, float]:
    began = process_time()
    return act(), process_time() - began


def shown(row: Row) -> Row:
    print(json.dumps(asdict(row)), flush=True)
    return row


def machine() -> str:
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    versions = f"Python {platform.python_version()}, cryptography {version('cryptography')}, numpy {np.__version__}"
    return f"{len(names)} cores, {names[0]}, {versions}, load {os.getloadavg()[0]:.1f}"


def tables(record: dict[str, Any]) -> str:
    parts = record["parts"]
    lines = [
        "Made by `python benchmarks/secagg.py` from [results/secagg.json](results/secagg.json). CPU seconds on one",
        f"core, medians over clients; {record['dropped']:.0%} of the clients vanish in phase {record['dropped_in']}.",
        "Bytes of a client are the most that any survivor sent or received.",
        *(f"{name.capitalize()}: {part['date']}, {part['machine']}." for name, part in parts.items()),
        "",
        "| graph | n | d | degree, t | client, s (worst) | server, s | client up | client down | server in | server out"
        " | up / 32-bit plain |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(line(row) for name in ("complete", "sparse") if name in parts for row in parts[name]["rows"]),
    ]
    if "acceptance" in parts:
        lines += ["", *acceptance(parts["acceptance"]["rows"], record["limits"])]
    return "\n".join(lines)


def acceptance(rows: list[dict[str, Any]], limits: dict[str, float]) -> list[str]:
    names = {"client_s": "client, CPU s", "server_s": "server, CPU s", "expansion": "up / 32-bit plain"}
    return [
        f"The acceptance case, 100 clients with the CNN on the complete graph, median of {len(rows)}:",
        "",
        "| | at most | measured |",
        "|---|---|---|",
        *(f"| {name} | {limits[key]} | {median(row[key] for row in rows):.3f} |" for key, name in names.items()),
    ]


def line(row: dict[str, Any]) -> str:
    sizes = [size(row[key]) for key in ("client_up", "client_down", "server_up", "server_down")]
    return (
        f"| {row['graph']} | {row['n']} | {row['d']:,} | {row['degree']}, {row['threshold']} "
        f"| {row['client_s']:.3f} ({row['client_worst_s']:.3f}) | {row['server_s']:.2f} | {' | '.join(sizes)} "
        f"| {row['expansion']:.3f} |"
    )


def size(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


if __name__ == "__main__":
    main()
