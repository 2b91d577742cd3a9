"""A real fleet server for tests, and peers that talk to it byte by byte, honest and dishonest ones."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep

import numpy as np

from fedavg.fleets.http.protocol.keys import COUNTER, ClientKey, Signer
from fedavg.fleets.http.protocol.messages import PROTOCOL, EnrolRequest
from fedavg.fleets.http.protocol.strict import dump
from fedavg.fleets.http.protocol.wire import UpdateHeader, encode_update
from fedavg.plan import Plan
from fedavg.programs.servable import Address, Options
from fedavg.programs.serve import serve
from toys import toy_data

HOST = "127.0.0.1"
#: The parameters of `toys.small_net`: 8 * 16 + 16 + 16 * 3 + 3.
NUMBERS = 195
#: Clients 0, 1 and 2 with 5, 10 and 20 examples: the server itself uses only the test set.
DATA = toy_data((5, 10, 20))
#: A selection with no criterion set; the server accepts it only with at least one.
EVERYONE = dict.fromkeys(("client", "token", "address", "newer_than_h", "older_than_h"))
ELIGIBLE = {"charging": True, "unmetered": True, "idle": True}


def fleet_plan(**changes: object) -> Plan:
    """A plan whose task and data a server process can import by name."""
    values = {"task": "toys:TOY", "data": "fleet_peers:DATA", "C": 1.0, "E": 1, "B": 4, "lr": 0.1, "rounds": 1}
    return Plan(**values | changes)  # type: ignore[arg-type]


@dataclass
class Answer:
    """A response; status 0 is a connection that ended without one."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return self.json["error"]


class Wire:
    """One connection. It sends exactly what it is given, and reconnects if the server has hung up."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None, timeout: float = 60.0) -> None:
        self._port, self._tls, self._timeout = port, tls, timeout
        self._socket: socket.socket | None = None
        self._buffer = b""

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket, self._buffer = None, b""

    @property
    def socket(self) -> socket.socket:
        if self._socket is None:
            raw = socket.create_connection((HOST, self._port), self._timeout)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = self._tls.wrap_socket(raw, server_hostname=HOST) if self._tls else raw
        return self._socket

    def send(self, data: bytes) -> None:
        """Send bytes; a server that has already hung up shows when an answer is read."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        self.send(request_bytes(method, path, body, headers))
        return self.answer(method)

    def answer(self, method: str = "GET") -> Answer:
        """The next response on this connection, or status 0 if it ended instead."""
        try:
            answer = self._read(method)
        except (ConnectionResetError, EOFError):
            answer = Answer(0)
        if answer.status == 0 or answer.headers.get("connection") == "close":
            self.close()
        return answer

    def ended_after(self) -> float:
        """Seconds until the server ends the connection, whatever it says before."""
        began = monotonic()
        with suppress(ConnectionResetError):
            while self.socket.recv(65536):
                pass
        self.close()
        return monotonic() - began

    def _read(self, method: str) -> Answer:
        head = self._until(b"\r\n\r\n").decode("latin-1")
        first, *lines = head.split("\r\n")
        status = int(first.split()[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if status == 100:
            return self._read(method)
        if method == "HEAD" or status in (204, 304):
            return Answer(status, headers)
        return Answer(status, headers, self._exactly(int(headers["content-length"])))

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise EOFError
        self._buffer += data


def request_bytes(method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    fields = {"Host": "fleet"} | ({} if body is None else {"Content-Length": str(len(body))}) | (headers or {})
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + (body or b"")


class Peer(Wire):
    """A client with a key that does exactly what a test tells it to."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(port, tls)
        self.key = ClientKey.generate()
        self.signer = Signer(self.key, None, "none-yet")
        self.examples, self.taken = 10, None

    def signed(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        """A signed request; signs again when the server has a new epoch or has seen more."""
        answer = self.request(method, path, body, self.signer.headers(method, path, body) | (headers or {}))
        if answer.status == 401 and answer.error in ("stale-epoch", "replayed", "too-old"):
            self.signer.resync(answer.json["epoch"] or self.signer.epoch, int(answer.headers.get(COUNTER.lower(), 0)))
            answer = self.request(method, path, body, self.signer.headers(method, path, body) | (headers or {}))
        return answer

    def enrol(self, token: str, examples: int = 10, client: int | None = None, **changes: object) -> Answer:
        key = b64encode(self.key.public).decode()
        message = EnrolRequest(token, key, examples, "", client, ["toys:TOY"], PROTOCOL)
        answer = self.signed("POST", "/v1/enrol", dump(replace(message, **changes)))  # type: ignore[arg-type]
        if answer.status == 200:
            self.signer.client, self.examples = answer.json["client"], examples
            self._take(answer.json)
        return answer

    def _take(self, told: dict) -> None:
        """Take up the run that the server offers, if there is one."""
        self.taken = {name: told[name] for name in ("run", "plan_digest")} if told["run"] else None
        self.plan_digest = told["plan_digest"]

    @property
    def k(self) -> int:
        assert self.signer.client is not None
        return self.signer.client

    def poll(self, wait_s: float = 0.0) -> Answer:
        """Asks for work, and takes up whatever run is offered."""
        body = {"eligible": ELIGIBLE, "examples": self.examples, "holding": None, "run": self.taken, "wait_s": wait_s}
        answer = self.signed("POST", "/v1/poll", json.dumps(body).encode())
        if answer.status == 200 and answer.json["type"] == "plan":
            self._take(answer.json)
            return self.poll(wait_s)
        return answer

    def offer(self) -> dict:
        """Polls until there is work."""
        until = monotonic() + 120
        while (answer := self.poll(1.0).json)["type"] != "work":
            assert monotonic() < until, answer
            sleep(0.05)
        return answer

    def frame(self, offer: dict, vector: np.ndarray, weight: float, **changes: object) -> bytes:
        header = UpdateHeader(
            plan=self.plan_digest, round=offer["round"], attempt=offer["attempt"], model=offer["model"],
            codec="float32", numbers=NUMBERS, weight=weight, metrics={"train_loss": 0.5},
        )  # fmt: skip
        return encode_update(replace(header, **changes), vector.astype("<f4").tobytes())  # type: ignore[arg-type]

    def upload(self, offer: dict, frame: bytes, headers: dict[str, str] | None = None) -> Answer:
        return self.signed("PUT", f"/v1/rounds/{offer['round']}/{offer['attempt']}/update", frame, headers)


@dataclass(frozen=True)
class Served:
    """Where a server is and what its operator knows."""

    port: int
    directory: Path
    tls: ssl.SSLContext | None = None
    pid: int | None = None

    @property
    def join_token(self) -> str:
        return (self.directory / "join-token").read_text()

    @property
    def admin_token(self) -> str:
        return (self.directory / "admin-token").read_text()

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        with Wire(self.port, self.tls) as wire:
            return wire.request(method, path, body, headers)

    def admin(self, method: str, path: str, message: object = None) -> Answer:
        body = None if message is None else json.dumps(message).encode()
        return self.ask(method, path, body, {"Authorization": f"Bearer {self.admin_token}"})

    def new_token(self, uses: int | None = 1, client: int | None = None, hours: float | None = None) -> str:
        wanted = {"uses": uses, "label": "", "client": client, "hours": hours}
        return self.admin("POST", "/admin/tokens", wanted).json["token"]

    def revoke(self, **selection: object) -> list[int]:
        """The operator revokes clients; returns which."""
        return self.admin("POST", "/admin/clients/revoke", EVERYONE | selection).json["clients"]

    def status(self) -> dict:
        return self.ask("GET", "/v1/status").json

    def metrics(self) -> dict[str, float]:
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def peer(self, examples: int = 10, client: int | None = None, token: str | None = None, **changes: object) -> Peer:
        """An enrolled client."""
        peer = Peer(self.port, self.tls)
        answer = peer.enrol(token or self.join_token, examples, client, **changes)
        assert answer.status == 200, answer
        return peer

    def cohort(self, *examples: int) -> tuple[list[Peer], list[dict]]:
        """Clients that are there and have been offered the round under way."""
        peers = [self.peer(n) for n in examples]
        for peer in peers:
            peer.poll()
        return peers, [peer.offer() for peer in peers]


@contextmanager
def serving(
    directory: Path, plan: Plan | None = None, speak: ssl.SSLContext | None = None, **options: object
) -> Iterator[Served]:
    """A server in this process on a real socket, stopped by its operator at the end; `speak` is how to talk to it."""
    plan = plan or fleet_plan(rounds=100)
    ready: list[int] = []
    failed: list[BaseException] = []
    settled = threading.Event()

    def listening(port: int) -> None:
        ready.append(port)
        settled.set()

    def run() -> None:
        try:
            serve(plan, Options(Address(HOST, 0), directory, **options), ready=listening)  # type: ignore[arg-type]
        except BaseException as error:  # checked below
            failed.append(error)
        finally:
            settled.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    settled.wait()
    if not ready:
        raise failed[0]
    served = Served(ready[0], directory, speak)
    try:
        yield served
    finally:
        with suppress(OSError):
            served.admin("POST", "/admin/stop")
        thread.join(120)
        assert not thread.is_alive()


@contextmanager
def serving_process(directory: Path, plan: Plan, *arguments: str) -> Iterator[Served]:
    """`fedavg serve` in its own process on loopback; its output is in the file `stderr`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "served.toml").write_text(plan.to_toml())
    run_dir = directory / "run"
    command = [sys.executable, "-m", "fedavg", "serve", str(directory / "served.toml"), "--insecure", "--listen",
               f"{HOST}:0", "--run-dir", str(run_dir), *arguments]  # fmt: skip
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with (directory / "stderr").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log, env=os.environ | {"PYTHONPATH": paths})
    try:
        yield Served(_port(directory / "stderr", process), run_dir, pid=process.pid)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(condition: Callable[[], object], what: str = "", timeout: float = 120.0) -> object:
    """Wait for a condition, and return its value."""
    end = monotonic() + timeout
    while not (found := condition()):
        assert monotonic() < end, f"waited {timeout:g} s {what}"
        sleep(0.02)
    return found


def _port(log: Path, process: "subprocess.Popen[bytes]") -> int:
    until = monotonic() + 120
    while monotonic() < until and process.poll() is None:
        for line in log.read_text().splitlines():
            if '"event": "listening"' in line:
                return int(json.loads(line)["port"])
        sleep(0.1)
    raise AssertionError(f"the server did not come up: {log.read_text()}")
