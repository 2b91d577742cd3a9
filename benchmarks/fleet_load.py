"""What one `fedavg serve` carries: updates a second, held polls, slow connections; on loopback, with light clients.

usage: python benchmarks/fleet_load.py updates [--clients 2000] [--cohort 500] [--rounds 6] [--tls]
       python benchmarks/fleet_load.py held [--polls 10000] [--clients 1000]
       python benchmarks/fleet_load.py loris [--connections 1000]

The server has its own process, and so does the client that measures how long an honest client waits; the light clients
share a third. Each run is added to docs/results/fleet_load.json, from which the tables of docs/fleet-load.md are made,
or, with --json, only printed. Both sides share one machine: whatever the clients use, the server lacks.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any, TypeVar

import numpy as np

from light_devices import Body, ConnectionCut, LightClient, Server, Taken, Wire, poll_body

T = TypeVar("T")

TASK = "mnist-2nn"
P = 199_210
#: Clients per address: the server lets an address enrol no more at once.
PER_ADDRESS = 400
HELD_S = 25.0
#: How long the server tells clients to wait before they come back.
RETRY_S = 2.0
#: Slow connections opened per second: all at once would be another attack, a flood.
SLOW_PER_S = 250
#: The rest of the page after this is not made from the record, and stays.
BY_HAND = "## What bounds it\n"
SAMPLE_S = 0.25
TICKS = os.sysconf("SC_CLK_TCK")


# The server


class Process:
    """What the system says about a process."""

    def __init__(self, pid: int) -> None:
        self._proc = Path(f"/proc/{pid}")

    def rss_mb(self) -> float:
        lines = (self._proc / "status").read_text().splitlines()
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)

    def cpu_s(self) -> float:
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


@dataclass(frozen=True)
class Running:
    """A server that listens."""

    at: Server
    process: Process
    directory: Path


@contextmanager
def serving(clients: int, cohort: int, rounds: int, tls: bool = False, more: tuple[str, ...] = ()) -> Iterator[Running]:
    """A `fedavg serve` process for this plan, stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="fleet-load-") as name:
        directory = Path(name)
        secured, context = _tls_options(directory) if tls else (("--insecure",), None)
        command = [
            sys.executable, "-m", "fedavg", "serve", "mnist-2nn", "--listen", "127.0.0.1:0", "--run-dir", name,
            "--clients", str(clients), "-C", str(cohort / clients), "--rounds", str(rounds), "--lr", "0.1",
            "--eval-every", "1000", *secured, *more,
        ]  # fmt: skip
        log = directory / "log"
        with log.open("wb") as file:
            server = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            port = _port(server, log)
            token = (directory / "join-token").read_text().strip()
            yield Running(Server("127.0.0.1", port, token, TASK, context), Process(server.pid), directory)
        finally:
            server.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                server.wait(30)
            server.kill()
            server.wait()


def _tls_options(directory: Path) -> tuple[tuple[str, ...], Any]:
    from fedavg.fleets.http.protocol.certs import client_context, make_certificates

    made = make_certificates(directory / "certificates", ["127.0.0.1"])
    options = ("--cert", str(made.server.certificate), "--key", str(made.server.key))
    return options, client_context(made.ca.certificate)


def _port(server: "subprocess.Popen[bytes]", log: Path) -> int:
    """The port, from the server's log once it listens."""
    until = monotonic() + 120
    while monotonic() < until and server.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("{") and (said := json.loads(line))["event"] == "listening":
                return int(said["port"])
        server_wait(server)
    raise RuntimeError(f"the server does not listen:\n{log.read_text()[-2000:]}")


def server_wait(server: "subprocess.Popen[bytes]") -> None:
    with suppress(subprocess.TimeoutExpired):
        server.wait(0.2)


# Light clients


async def enrolled(server: Server, count: int) -> list[LightClient]:
    """`count` clients, enrolled over the network, each with its own key and connection."""
    first = LightClient(server, _address(0))
    epoch = (await first.enrol())["epoch"]
    clients = [first, *(LightClient(server, _address(i), epoch) for i in range(1, count))]
    turns = asyncio.Semaphore(64)

    async def enrol(client: LightClient) -> None:
        async with turns:
            await client.enrol()

    await asyncio.gather(*map(enrol, clients[1:]))
    return clients


def _address(i: int) -> str:
    return f"127.0.{1 + i // PER_ADDRESS // 250}.{1 + i // PER_ADDRESS % 250}"


class Uploads:
    """Clients that answer every offer at once with a ready-made update."""

    def __init__(self, taken: Taken) -> None:
        from fedavg.fleets.http.protocol.wire import UpdateHeader, encode_update

        self._plan = taken.plan_digest
        self._header, self._encode = UpdateHeader, encode_update
        vector = np.random.default_rng(0).normal(0, 0.01, P).astype("<f4")
        self._payload = vector.tobytes()
        self._frames: dict[tuple[int, int], Body] = {}
        self._poll = poll_body(HELD_S, taken)
        #: When each accepted update began and ended, by round.
        self.spans: dict[int, list[tuple[float, float]]] = {}
        self.refusals: dict[str, int] = {}
        self.cuts = 0

    def frame(self, offer: dict[str, Any]) -> Body:
        """The update for an offer: the same for all clients, so made once."""
        key = (offer["round"], offer["attempt"])
        if key not in self._frames:
            header = self._header(
                plan=self._plan, round=key[0], attempt=key[1], model=offer["model"], codec="float32", numbers=P,
                weight=30.0, metrics={"train_loss": 1.0},
            )  # fmt: skip
            self._frames = {key: Body.of(self._encode(header, self._payload))}
        return self._frames[key]

    async def work(self, client: LightClient) -> None:
        """Poll and upload until the run is over."""
        while True:
            try:
                answer = await client.poll(self._poll)
                if answer["type"] == "done":
                    return
                if answer["type"] == "wait":
                    await asyncio.sleep(answer["retry_after_s"])
                else:
                    await self._upload(client, answer)
            except (ConnectionCut, OSError):
                self.cuts += 1
                await asyncio.sleep(0.5)

    async def _upload(self, client: LightClient, offer: dict[str, Any]) -> None:
        began = perf_counter()
        path = f"/v1/rounds/{offer['round']}/{offer['attempt']}/update"
        reply = await client.ask("PUT", path, self.frame(offer))
        if reply.status == 200:
            self.spans.setdefault(offer["round"], []).append((began, perf_counter()))
        else:
            why = f"{reply.status} {reply.json()['error']}"
            self.refusals[why] = self.refusals.get(why, 0) + 1
            await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))  # as a device does


# What is measured


@dataclass(frozen=True)
class Sample:
    """A moment: the server's memory, and the processor seconds that it and the clients have used so far."""

    at: float
    rss_mb: float
    server_s: float
    clients_s: float


class Watch:
    """Samples of the server over time."""

    def __init__(self, server: Process) -> None:
        self._server, self._self = server, Process(os.getpid())
        self._samples: list[Sample] = []

    async def __aenter__(self) -> "Watch":
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _sample(self) -> None:
        while True:
            server = self._server
            self._samples.append(Sample(perf_counter(), server.rss_mb(), server.cpu_s(), self._self.cpu_s()))
            await asyncio.sleep(SAMPLE_S)

    def during(self, first: float, last: float) -> list[Sample]:
        return [sample for sample in self._samples if first - SAMPLE_S <= sample.at <= last + SAMPLE_S]


def rss(samples: list[Sample], idle_mb: float) -> dict[str, int]:
    sizes = [sample.rss_mb for sample in samples]
    return {"start": round(idle_mb), "median": round(median(sizes)), "max": round(max(sizes))}


def cores(samples: list[Sample]) -> dict[str, float]:
    """How many cores each side kept busy."""
    first, last = samples[0], samples[-1]
    seconds = last.at - first.at
    return {
        "server": round((last.server_s - first.server_s) / seconds, 2),
        "clients": round((last.clients_s - first.clients_s) / seconds, 2),
    }


class Probe:
    """An honest client in its own process: how long immediate polls and pings take."""

    def __init__(self, server: Running, tls: bool) -> None:
        ca = server.directory / "certificates" / "ca.pem"
        at = server.at
        command = [sys.executable, __file__, "probe", str(at.port), at.token, *([str(ca)] if tls else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("the probe did not start")

    async def took(self) -> dict[str, list[tuple[float, float]]]:
        """End it; the moments and seconds of its requests by kind."""
        out, _ = await asyncio.to_thread(self._process.communicate, "")
        result: dict[str, list[tuple[float, float]]] = json.loads(out)
        return result


async def probe(port: int, token: str, ca: str | None) -> None:
    """Poll and ping at a steady pace until stdin ends; then print what it took."""
    from fedavg.fleets.http.protocol.certs import client_context

    server = Server("127.0.0.1", port, token, TASK, client_context(Path(ca)) if ca else None)
    clients = [LightClient(server, f"127.0.0.{10 + i}") for i in range(8)]
    for client in clients:
        await client.enrol()
    body = poll_body(0, clients[0].taken, eligible=False)
    took: dict[str, list[tuple[float, float]]] = {"poll": [], "ping": []}

    async def timed(kind: str, request: Callable[[], Awaitable[object]]) -> None:
        began = perf_counter()
        await request()
        took[kind].append((began, perf_counter() - began))

    async def ping(client: LightClient) -> None:
        wire = await client.connect()
        await wire.send(b"GET /healthz HTTP/1.1\r\nHost: fleet\r\n\r\n")

    async def forever(i: int, client: LightClient) -> None:
        await asyncio.sleep(0.2 * i / len(clients))  # staggered: one stall should not count for all
        while True:
            await timed("poll", lambda: client.poll(body))
            await asyncio.sleep(0.1)
            await timed("ping", lambda: ping(client))
            await asyncio.sleep(0.1)

    print("ready", flush=True)
    tasks = [asyncio.create_task(forever(i, client)) for i, client in enumerate(clients)]
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    done, _ = await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in done - {ended}:
        task.result()
    print(json.dumps(took))
    sys.stdout.flush()
    os._exit(0)


def milliseconds(seconds: list[float]) -> dict[str, float]:
    return {
        "n": len(seconds),
        "p50_ms": round(1000 * float(np.percentile(seconds, 50)), 1),
        "p99_ms": round(1000 * float(np.percentile(seconds, 99)), 1),
    }


def between(samples: list[tuple[float, float]], first: float, last: float) -> dict[str, float]:
    """The distribution of requests that began within a period."""
    return milliseconds([took for began, took in samples if first <= began <= last])


# Scenarios


async def updates(clients: int, cohort: int, rounds: int, tls: bool = False) -> dict[str, Any]:
    """All clients poll; in each round a cohort uploads at once."""
    with serving(clients, cohort, rounds, tls, ("--deadline", "120")) as server:
        idle_rss = server.process.rss_mb()
        lot = await enrolled(server.at, clients)
        probing = await asyncio.to_thread(Probe, server, tls)
        uploads = Uploads(lot[0].taken)
        async with Watch(server.process) as watch:
            await asyncio.gather(*map(uploads.work, lot))
        took = await probing.took()
    spans = list(uploads.spans.values())
    first, last = min(b for s in spans for b, _ in s), max(e for s in spans for _, e in s)
    rates = [len(s) / (max(e for _, e in s) - min(b for b, _ in s)) for s in spans]
    waits = [end - began for span in spans for began, end in span]
    load = watch.during(first, last)
    spent = load[-1].server_s - load[0].server_s
    return {
        "clients": clients,
        "cohort": cohort,
        "rounds": rounds,
        "tls": tls,
        "updates": len(waits),
        "update_bytes": 4 * P,
        "updates_per_s": round(median(rates), 1),
        "updates_per_s_with_commits": round(len(waits) / (last - first), 1),
        "upload_s": {"p50": round(float(np.median(waits)), 2), "max": round(max(waits), 2)},
        "poll": between(took["poll"], first, last),
        "ping": between(took["ping"], first, last),
        "rss_mb": rss(load, idle_rss),
        "cores": cores(load),
        "server_ms_per_update": round(1000 * spent / len(waits), 2),
        "refusals": uploads.refusals,
        "cuts": uploads.cuts,
    }


async def held(polls: int, clients: int, seconds: float = 10.0, tls: bool = False) -> dict[str, Any]:
    """`polls` polls are held open, each on its own connection, some for each client; the run never begins."""
    with serving(clients, 1, 1, tls, ("--min-clients", str(clients + 1))) as server:
        idle_rss = server.process.rss_mb()
        lot = await enrolled(server.at, clients)
        enrolled_rss = server.process.rss_mb()
        probing = await asyncio.to_thread(Probe, server, tls)
        lot += [client.on_another_connection() for client in lot for _ in range(polls // clients - 1)]
        turns = asyncio.Semaphore(64)
        waiting = [asyncio.create_task(_poll_again_and_again(client, turns)) for client in lot]
        await until_held(lot[0], polls * 98 // 100)  # the rest are between two polls
        began = perf_counter()
        async with Watch(server.process) as watch:
            await asyncio.sleep(seconds)
        ended, still = perf_counter(), await held_polls(lot[0])
        took = await probing.took()
        for poll in waiting:
            poll.cancel()
    load = watch.during(began, ended)
    return {
        "polls": polls,
        "clients": clients,
        "tls": tls,
        "held": still,
        "rss_mb": {**rss(load, idle_rss), "enrolled": round(enrolled_rss)},
        "poll": between(took["poll"], began, ended),
        "ping": between(took["ping"], began, ended),
        "cores": cores(load),
    }


async def _poll_again_and_again(client: LightClient, turns: asyncio.Semaphore) -> None:
    async with turns:  # connect a few at a time: a connection that is silent for seconds is cut
        await client.connect()
    while True:
        answer = await client.poll(poll_body(60.0, client.taken))
        await asyncio.sleep(answer["retry_after_s"])


async def held_polls(client: LightClient) -> int:
    other = LightClient(client.server)
    reply = await (await other.connect()).send(b"GET /v1/status HTTP/1.1\r\nHost: fleet\r\n\r\n")
    other.close()
    return int(reply.json()["held_polls"])


async def until_held(client: LightClient, count: int) -> None:
    until = monotonic() + 150
    while await held_polls(client) < count:
        if monotonic() > until:
            raise RuntimeError(f"{await held_polls(client)} polls are held; expected {count}")
        await asyncio.sleep(0.2)


async def loris(connections: int, tls: bool = False) -> dict[str, Any]:
    """Connections that never finish a request's head, then as many that never finish an update's body."""
    with serving(connections, connections, 1, tls) as server:
        lot = await enrolled(server.at, connections)
        probing = await asyncio.to_thread(Probe, server, tls)
        marks = [perf_counter()]
        await asyncio.sleep(12)
        marks.append(perf_counter())
        strangers = [LightClient(server.at) for _ in lot]
        heads = await slowly([b"POST /v1/poll HTTP/1.1\r\nHost: "] * connections, strangers)
        marks.append(perf_counter())
        for client in lot:
            client.close()  # it may have been idle for too long
        turns = asyncio.Semaphore(64)
        offers = await asyncio.gather(*(_offered(client, turns) for client in lot))
        uploads = [
            client.head("PUT", f"/v1/rounds/{offer['round']}/{offer['attempt']}/update", Body(bytes(4 * P), "0" * 64))
            for client, offer in zip(lot, offers, strict=True)
        ]
        marks.append(perf_counter())
        bodies = await slowly(uploads, lot)
        marks.append(perf_counter())
        took = await probing.took()
    stretches = {"before": marks[0:2], "slow_heads": marks[1:3], "slow_bodies": marks[3:5]}
    return {
        "connections": connections,
        "tls": tls,
        "cut_after_s": {"slow_heads": round(max(heads), 1), "slow_bodies": round(max(bodies), 1)},
        "poll": {name: between(took["poll"], *ends) for name, ends in stretches.items()},
        "ping": {name: between(took["ping"], *ends) for name, ends in stretches.items()},
    }


async def _offered(client: LightClient, turns: asyncio.Semaphore) -> dict[str, Any]:
    """The offer of work; polls for it, a few clients at a time."""
    while True:
        async with turns:
            answer = await client.poll(poll_body(0, client.taken))
        if answer["type"] == "work":
            return answer
        await asyncio.sleep(2)


async def slowly(heads: list[bytes], clients: list[LightClient]) -> list[float]:
    """Send what is given, then a byte every other second; the seconds until each connection is cut."""

    async def one(i: int, head: bytes, client: LightClient) -> float:
        await asyncio.sleep(i / SLOW_PER_S)
        wire: Wire = await client.connect()
        began = perf_counter()
        wire.send(head).add_done_callback(lambda reply: reply.cancelled() or reply.exception())
        while not wire.cut.is_set() and perf_counter() - began < 60:
            with suppress(TimeoutError):
                await asyncio.wait_for(wire.cut.wait(), 2)
            if wire.transport:
                wire.transport.write(b"x")
        return perf_counter() - began

    return await asyncio.gather(*map(one, range(len(heads)), heads, clients))


# The record


def machine() -> str:
    about = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in about if "model name" in line]
    return f"{len(names)} cores, {names[0]}, Python {platform.python_version()}"


def loop_run(scenario: Coroutine[Any, Any, T]) -> T:
    import uvloop

    return uvloop.run(scenario)


def run(scenario: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """One run, with how busy the machine was: others may have used it too."""
    before = os.getloadavg()[0]
    return {**loop_run(scenario), "load_average": [round(before, 1), round(os.getloadavg()[0], 1)]}


def report(record: dict[str, Any]) -> str:
    """The record as a page; the figures are medians over its runs."""
    runs = record["runs"]
    lines = [
        "# What one server carries",
        "",
        "Made by `python benchmarks/fleet_load.py` from [fleet_load.json](results/fleet_load.json) on "
        f"{record['date']}: {record['machine']}. Server, light clients and the honest client that is timed are three "
        "processes on this one machine, over loopback, and other work ran beside them: the load average (processes "
        "that want a core) is in the last column. Figures are medians over the runs, times are of whole requests.",
        "",
    ]
    if runs.get("updates"):
        lines += [
            "## Updates of the 2NN (0.8 MB each) into a round",
            "",
            "| clients | cohort | TLS | runs | updates/s while collecting | server, ms of processor an update "
            "| cores: server, clients | poll p50, p99, ms | memory, MB: start, most | load |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *(_updates_row(same) for same in _alike(runs["updates"], "clients", "cohort", "tls")),
            "",
        ]
    if runs.get("held"):
        lines += [
            "## Polls that are held open",
            "",
            "| held | runs | memory, MB: start, most | kB a poll | ping p50, p99, ms | poll p50, p99, ms | load |",
            "|---|---|---|---|---|---|---|",
            *(_held_row(same) for same in _alike(runs["held"], "polls", "tls")),
            "",
        ]
    if runs.get("loris"):
        lines += [
            "## Slow connections",
            "",
            "| connections | runs | slow heads cut after, s | slow bodies cut after, s | honest poll p99, ms: before, "
            "slow heads, slow bodies | load |",
            "|---|---|---|---|---|---|",
            *(_loris_row(same) for same in _alike(runs["loris"], "connections", "tls")),
            "",
        ]
    return "\n".join(lines) + "\n"


def _alike(runs: list[dict[str, Any]], *names: str) -> list[list[dict[str, Any]]]:
    """Runs grouped by the same settings."""
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for one in runs:
        groups.setdefault(tuple(one[name] for name in names), []).append(one)
    return list(groups.values())


def _middle(runs: list[dict[str, Any]], *path: str) -> str:
    """The median of a figure over runs."""
    values = []
    for one in runs:
        value: Any = one
        for name in path:
            value = value[name]
        values.append(float(value))
    return f"{median(values):.3g}" if median(values) < 1000 else f"{median(values):,.0f}"


def _load(runs: list[dict[str, Any]]) -> str:
    return " to ".join(f"{edge(one['load_average'][1] for one in runs):.0f}" for edge in (min, max))


def _updates_row(runs: list[dict[str, Any]]) -> str:
    one = runs[0]
    return (
        f"| {one['clients']:,} | {one['cohort']:,} | {'yes' if one['tls'] else 'no'} | {len(runs)} "
        f"| {_middle(runs, 'updates_per_s')} | {_middle(runs, 'server_ms_per_update')} "
        f"| {_middle(runs, 'cores', 'server')}, {_middle(runs, 'cores', 'clients')} "
        f"| {_middle(runs, 'poll', 'p50_ms')}, {_middle(runs, 'poll', 'p99_ms')} "
        f"| {_middle(runs, 'rss_mb', 'start')}, {_middle(runs, 'rss_mb', 'max')} | {_load(runs)} |"
    )


def _held_row(runs: list[dict[str, Any]]) -> str:
    each = median(1024 * (one["rss_mb"]["max"] - one["rss_mb"]["start"]) / one["held"] for one in runs)
    return (
        f"| {_middle(runs, 'held')} | {len(runs)} | {_middle(runs, 'rss_mb', 'start')}, "
        f"{_middle(runs, 'rss_mb', 'max')} | {each:.0f} | {_middle(runs, 'ping', 'p50_ms')}, "
        f"{_middle(runs, 'ping', 'p99_ms')} | {_middle(runs, 'poll', 'p50_ms')}, {_middle(runs, 'poll', 'p99_ms')} "
        f"| {_load(runs)} |"
    )


def _loris_row(runs: list[dict[str, Any]]) -> str:
    p99 = ", ".join(_middle(runs, "poll", when, "p99_ms") for when in ("before", "slow_heads", "slow_bodies"))
    return (
        f"| {runs[0]['connections']:,} of each kind | {len(runs)} | {_middle(runs, 'cut_after_s', 'slow_heads')} "
        f"| {_middle(runs, 'cut_after_s', 'slow_bodies')} | {p99} | {_load(runs)} |"
    )


def keep(scenario: str, result: dict[str, Any], out: Path) -> None:
    """Add a run to the record, and make the page from it."""
    path = out / "results" / "fleet_load.json"
    record = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    record |= {"date": f"{date.today()}", "machine": machine()}
    record["runs"].setdefault(scenario, []).append(result)
    path.write_text(json.dumps(record, indent=1) + "\n")
    page = out / "fleet-load.md"
    said = page.read_text().partition(BY_HAND)[2] if page.exists() else ""
    page.write_text(report(record) + BY_HAND + said)


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if sys.argv[1:2] == ["probe"]:
        loop_run(probe(int(sys.argv[2]), sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=["updates", "held", "loris"])
    parser.add_argument("--clients", type=int, help="enrolled clients")
    parser.add_argument("--cohort", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--polls", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--json", action="store_true", help="only print the result; nothing is written")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    o = parser.parse_args()
    result = run(
        {
            "updates": lambda: updates(o.clients or 2000, o.cohort, o.rounds, o.tls),
            "held": lambda: held(o.polls, o.clients or 1000, tls=o.tls),
            "loris": lambda: loris(o.connections, o.tls),
        }[o.scenario]()
    )
    print(json.dumps(result, indent=1))
    if not o.json:
        keep(o.scenario, result, o.out)


if __name__ == "__main__":
    main()
