"""Servers and devices as real processes on real sockets, to be killed.

They are forked from a template that has already imported PyTorch, so that a hundred restarts do not take an hour;
recovery is timed elsewhere, with the command as a user starts it.
"""

import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2 as httpx
import numpy as np
import torch
from tiny import DATA

from fedavg import Plan
from fedavg.codecs import make_codec
from fedavg.fleets.http.device.enrolment import own_key
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.judge import sums_frame
from fedavg.fleets.http.device.link import Link
from fedavg.fleets.http.device.policy import Policy
from fedavg.fleets.http.protocol.keys import ClientKey
from fedavg.fleets.http.protocol.messages import (
    MAX_MESSAGE,
    PROTOCOL,
    Eligibility,
    Enrolled,
    EnrolRequest,
    Holding,
    JudgeOffer,
    PollAnswer,
    PollRequest,
    Taken,
    UpdateAnswer,
    WorkOffer,
)
from fedavg.fleets.http.protocol.strict import parse
from fedavg.fleets.http.protocol.vouchers import voucher_text
from fedavg.fleets.http.protocol.wire import UpdateHeader, encode_update
from fedavg.fleets.http.server.store import Store
from fedavg.secagg.identity import vouch
from programs import Forked

#: A busy machine must not fail a test that only checks that something happens.
PATIENCE_S = 120.0


def free_port() -> int:
    """A port outside the system's ephemeral range, so that it stays free while a server is down."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)  # other tests may run at the same time
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port


def wait_until(condition: Callable[[], Any], what: str, timeout: float = PATIENCE_S) -> Any:
    until, pause = time.monotonic() + timeout, 0.01
    while not (found := condition()):
        assert time.monotonic() < until, f"waited {timeout:g} s for {what}"
        time.sleep(pause)
        pause = min(1.2 * pause, 0.05)  # each request is work for the server
    return found


def _log_to(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)


@dataclass(frozen=True)
class Clock:
    """A wall clock that is off by some hours; once the file `step` exists, it is off the other way."""

    hours: float = 0.0
    step: Path | None = None

    def set(self) -> None:
        """Make it the clock of this process."""
        if self.hours:
            real = time.time
            time.time = lambda: real() + 3600 * self.hours * (-1 if self.step and self.step.exists() else 1)


RIGHT = Clock()


def _run_command(arguments: list[str], log: Path, clock: Clock) -> None:
    _log_to(log)
    clock.set()
    from fedavg.cli import main

    sys.argv = ["fedavg", *arguments]
    main()


def _run_device(
    url: str,
    directory: Path,
    k: int,
    token: str,
    log: Path,
    clock: Clock,
    policy: Policy | None = None,
    authority: bytes | None = None,
) -> None:
    """`authority` is pinned; the voucher is in the directory already."""
    _log_to(log)
    clock.set()
    from fedavg.fleets.http.device.connection import Connection
    from fedavg.fleets.http.device.eligibility import look
    from fedavg.fleets.http.device.vouching import own_identity
    from fedavg.fleets.http.server.logs import log_to_stderr
    from fedavg.programs.device import Device

    log_to_stderr()
    device = Device(
        url,
        "tiny:TASK",
        DATA.client(k),
        state=directory,
        connection=Connection(insecure=True),
        token=token,
        client=k,
        eligible=lambda: look("yes", "yes", "yes"),
        policy=policy,
        vouched=(lambda files, key: own_identity(files, key, authority, None)) if authority else None,
    )
    device.run()


def log_lines(path: Path) -> list[dict[str, Any]]:
    """The lines logged as JSON; other lines, and one that a kill cut short, are left out."""
    lines = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        with suppress(ValueError):
            content = json.loads(line)
            lines += [content] if isinstance(content, dict) else []
    return lines


class Server:
    """A `fedavg serve` that can be killed and started again on the same port and database.

    `tls` is how its clients connect; without it, they use plain HTTP.
    """

    def __init__(self, directory: Path, plan: Plan | None, *options: str, tls: ssl.SSLContext | None = None) -> None:
        """Without a plan it is a service."""
        elsewhere = "--run-dir" in options
        self.directory = Path(options[options.index("--run-dir") + 1]) if elsewhere else directory / "run"
        self.port = free_port()
        self.url, self.tls = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}", tls
        self.log = directory / "server.log"
        self.plan = plan
        file = directory / "plan.toml"
        if plan:
            file.write_text(plan.to_toml())
        self.arguments = [
            "serve", *([str(file)] if plan else []), "--listen", f"127.0.0.1:{self.port}",
            "--run-dir", str(self.directory), "--linger", "2", *([] if tls else ["--insecure"]), *options,
        ]  # fmt: skip
        self.process: Any = None
        self.hands: list[Hand] = []
        self.clock = RIGHT

    def start(self) -> None:
        self.process = start_command(self.log, *self.arguments, clock=self.clock)

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive())

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def stop(self, timeout: float = PATIENCE_S) -> int:
        """SIGTERM; returns the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.ended(timeout)

    def go_on(self, condition: Callable[[dict[str, Any]], Any], what: str) -> None:
        """Start, and wait for a condition."""
        self.start()
        self.wait_for(condition, what)

    def ended(self, timeout: float = PATIENCE_S) -> int:
        self.process.join(timeout)
        assert not self.alive, f"the server did not end within {timeout:g} s"
        return int(self.process.exitcode)

    def status(self) -> dict[str, Any] | None:
        """The state of the run; None while the server does not answer."""
        away = suppress(urllib.error.URLError, HTTPException, ConnectionError, TimeoutError, ValueError)
        with away, urllib.request.urlopen(f"{self.url}/v1/status", timeout=2, context=self.tls) as answer:
            status: dict[str, Any] = json.load(answer)
            return status
        return None

    def wait_for(self, condition: Callable[[dict[str, Any]], Any], what: str, timeout: float = PATIENCE_S) -> None:
        def holds() -> Any:
            status = self.status()
            return status is not None and condition(status)

        wait_until(holds, what, timeout)

    @property
    def metrics(self) -> Path:
        return self.directory / "metrics.jsonl"

    @property
    def join_token(self) -> str:
        path = self.directory / "join-token"
        self.wait_for(lambda _: path.exists(), "the join token")
        return path.read_text()

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        return [line for line in log_lines(self.log) if event in (None, line.get("event"))]

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return summary


class DeviceProcess:
    """One client in its own process, on the tiny data."""

    def __init__(self, server: Server, k: int, directory: Path) -> None:
        self.k, self.directory = k, directory / f"device-{k}"
        self.log = directory / f"device-{k}.log"
        self.clock = RIGHT
        self._server = server
        self.process: Any = None
        self.policy: Policy | None = None
        self.authority: bytes | None = None

    def vouch(self, authority: ClientKey) -> None:
        """Give it a key and the authority's voucher for it; it pins the authority."""
        files = DeviceFiles(self.directory)
        files.prepare()
        key = own_key(self.directory / "key.pem")
        files.write("voucher", voucher_text(vouch(authority.private, key.public)).encode())
        self.authority = authority.public

    def start(self, token: str) -> None:
        own = (self.clock, self.policy, self.authority)
        arguments = (self._server.url, self.directory, self.k, token, self.log, *own)
        self.process = Forked(target=_run_device, args=arguments)
        self.process.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive())

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in log_lines(self.log) if line.get("event") == event]

    def accepted(self) -> list[tuple[int, int]]:
        """The rounds and attempts in which it was told that its update was accepted."""
        return [(line["round"], line["attempt"]) for line in log_lines(self.log) if line.get("event") == "accepted"]


class Hand:
    """A client driven by hand: it sends only the requests that a test asks for."""

    def __init__(self, server: Server, k: int, key: ClientKey | None = None) -> None:
        """Enrols, unless `key` has enrolled before."""
        self.k, self._plan, self._url = k, server.plan, server.url
        self.link = Link(server.url, key or ClientKey.generate(), server.tls, PATIENCE_S)
        server.hands.append(self)
        if key is None:
            public = b64encode(self.link.signer.key.public).decode()
            request = EnrolRequest(server.join_token, public, len(DATA.client(k)), "", k, ["tiny:TASK"], PROTOCOL)
            self.link.ask(Enrolled, "/v1/enrol", request)
        self.link.signer.client = k

    def poll(self, wait_s: float = 20.0, holding: WorkOffer | None = None) -> PollAnswer:
        """Asks for work, and whether the update of an earlier offer counted."""
        held = Holding(holding.round, holding.attempt, holding.model) if holding else None
        eligible, taken = Eligibility(True, True, True), Taken(1, self._plan.digest)
        request = PollRequest(eligible, len(DATA.client(self.k)), held, taken, wait_s)
        return self.link.ask(PollAnswer, "/v1/poll", request, wait_s)

    def offered(self) -> WorkOffer:
        """Polls until there is work."""
        answer = wait_until(lambda: isinstance(found := self.poll(1.0), WorkOffer) and found, "work")
        assert isinstance(answer, WorkOffer)
        return answer

    def offered_nothing(self) -> bool:
        """Asks once; true if there is no work for it now."""
        return not isinstance(self.poll(0), WorkOffer)

    def frame(self, offer: WorkOffer, vector: torch.Tensor | None = None) -> bytes:
        """An update of all zeros, or of these numbers."""
        codec = make_codec(self._plan.codec)
        vector = torch.zeros(offer.numbers) if vector is None else vector
        made_from = (self._plan.digest, offer.round, offer.attempt, offer.model)
        header = UpdateHeader(*made_from, codec.name, len(vector), weight=1.0, metrics={"train_loss": 1.0})
        return encode_update(header, codec.encode(vector, np.random.default_rng(0)))

    def upload(self, offer: WorkOffer, vector: torch.Tensor | None = None) -> UpdateAnswer:
        return parse(UpdateAnswer, self.link.upload(_path(offer), self.frame(offer, vector)), MAX_MESSAGE)

    def asked_to_judge(self) -> JudgeOffer:
        return wait_until(lambda: isinstance(answer := self.poll(1.0), JudgeOffer) and answer, "an evaluation")

    def send_sums(self, offer: JudgeOffer) -> UpdateAnswer:
        """Send sums as the task defines them: 1 of 2 right, a total loss of 3."""
        sums = {"accuracy.0": 1.0, "accuracy.1": 2.0, "loss.0": 3.0, "loss.1": 2.0}
        body = self.link.upload(_path(offer), sums_frame(self._plan.digest, offer, sums))
        return parse(UpdateAnswer, body, MAX_MESSAGE)

    def upload_once(self, offer: WorkOffer, vector: torch.Tensor) -> None:
        """Send an update to a server that may die of it, and do not wait for an answer."""
        frame = self.frame(offer, vector)
        headers = self.link.signer.headers("PUT", _path(offer), frame)
        with suppress(httpx.TransportError), httpx.Client() as http:
            http.put(self._url + _path(offer), content=frame, headers=headers)


def _path(offer: WorkOffer | JudgeOffer) -> str:
    return f"/v1/rounds/{offer.round}/{offer.attempt}/update"


@contextmanager
def serving(directory: Path, plan: Plan, *options: str) -> Iterator[Server]:
    """A server without devices, for clients driven by hand."""
    server = Server(directory, plan, "--linger", "60", *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        for hand in server.hands:
            hand.link.close()


class Fleet:
    """A server and its devices; whatever still runs at the end is killed."""

    def __init__(self, directory: Path, plan: Plan, clients: int, *options: str) -> None:
        self.plan, self.clients = plan, clients
        self.server = Server(directory, plan, "--min-clients", str(clients), *options)
        self._database = options[options.index("--db") + 1] if "--db" in options else self.server.directory / "fleet.db"
        self.devices = [DeviceProcess(self.server, k, directory) for k in range(clients)]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.server.start()
        self._stack.callback(lambda: self.server.kill())
        self.token = self.server.join_token
        for device in self.devices:
            device.start(self.token)
            self._stack.callback(device.kill)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        for hand in self.server.hands:
            hand.link.close()

    def finished(self) -> dict[str, Any]:
        """Wait for the last round and the end of the server; returns the summary."""
        over = lambda: not self.server.alive or (self.server.status() or {}).get("done")  # noqa: E731
        wait_until(over, "the last round", 4 * PATIENCE_S)
        assert self.server.ended() == 0
        return self.server.summary()

    def database(self) -> Store:
        return Store.open(self._database)


def start_command(log: Path, *arguments: str, clock: Clock = RIGHT) -> Any:
    """A command of `fedavg` in its own process."""
    process = Forked(target=_run_command, args=(list(arguments), log, clock))
    process.start()
    return process


def strace_attach(pid: int, *options: str) -> "subprocess.Popen[bytes]":
    """strace on one thread of a process, from now on."""
    tracer = subprocess.Popen(["strace", "-p", str(pid), *options], stderr=subprocess.PIPE)
    assert tracer.stderr
    assert b"attached" in tracer.stderr.readline()
    return tracer
