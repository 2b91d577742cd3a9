"""A malicious server on a real socket: it speaks the protocol to real devices, and lies as a test tells it to.

It enrols every client, answers polls with what the test provides for each client, and keeps everything that it
receives. For secure aggregation it uses a session of the real server, which the test may replace, split or lie about.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from harness import wait_until

from fedavg import Plan
from fedavg.fleets.http.protocol.messages import (
    MaskAnswer,
    Problem,
    UpdateAnswer,
    WaitAnswer,
    WorkOffer,
)
from fedavg.fleets.http.protocol.strict import dump
from fedavg.secagg import SessionMessage, parse


class Liar:
    """What it offers and shows to each client, and what each has sent. Its lock guards all of it."""

    def __init__(self, plan: Plan, numbers: int) -> None:
        self.plan, self.numbers = plan, numbers
        self.url = ""
        self.lock = threading.Lock()
        self.clients: dict[bytes, int] = {}
        self.polls: dict[int, bytes] = {}
        self.inbox: dict[int, bytes] = {}
        self.sent: dict[int, list[bytes]] = {}
        self.reports: list[tuple[int, dict[str, Any]]] = []
        self.asked: list[tuple[int, str]] = []
        self.models = {sha256(self.weights).hexdigest(): self.weights}
        #: Further paths beyond those of the protocol: bytes, or a function that yields pieces.
        self.files: dict[str, Callable[[], Iterator[bytes]]] = {}
        self.bytes_out = 0
        #: A proxy in front of it answers requests that begin like this ("PUT /v1/rounds") by itself.
        self.in_front: dict[str, tuple[int, bytes]] = {}
        self.poll_bodies: list[dict[str, Any]] = []
        #: Called after each upload.
        self.after_upload: Callable[[], None] = lambda: None

    @property
    def weights(self) -> bytes:
        return np.zeros(self.numbers, "<f4").tobytes()

    def offer(self, round: int, attempt: int, session: bytes | None, invited: int, /, **changes: Any) -> WorkOffer:
        work = self.plan.work(round)
        model = sha256(self.weights).hexdigest()
        name = session.hex() if session else None
        numbers = (model, self.numbers, 60.0, work.epochs, work.batch, work.lr)
        offer = WorkOffer(round, attempt, *numbers, {}, None, name, invited, 0, None)
        return WorkOffer(**{n: getattr(offer, n) for n in offer.__dataclass_fields__ if n != "type"} | changes)

    def say(self, k: int, answer: object) -> None:
        """Set the answer to the client's next polls; raw bytes are sent unchanged."""
        with self.lock:
            self.polls[k] = answer if isinstance(answer, bytes) else dump(answer)

    def show(self, k: int, offer: WorkOffer, step: int, message: SessionMessage) -> None:
        """Provide a message of a session, and tell the client that it is there."""
        with self.lock:
            self.inbox[k] = message.to_bytes()
        self.say(k, MaskAnswer(offer.round, offer.attempt, offer.session or "", step))

    def answers(self, k: int, kind: type[SessionMessage], session: bytes, count: int = 1) -> list[SessionMessage]:
        """Wait for what a client sends in a session."""

        def found() -> list[SessionMessage]:
            with self.lock:
                messages = [parse(body) for body in self.sent.get(k, [])]
            return [m for m in messages if isinstance(m, kind) and m.session == session]

        return wait_until(lambda: len(there := found()) >= count and there, f"a {kind.__name__} of client {k}")

    def reported(self, k: int, reason: str) -> dict[str, Any]:
        """Wait until a client has reported for this reason."""

        def found() -> dict[str, Any] | None:
            with self.lock:
                return next((said for who, said in self.reports if (who, said["reason"]) == (k, reason)), None)

        return wait_until(found, f"client {k} to report {reason}; so far {self.reports}")


def _handler(liar: Liar) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("content-length", 0)))

        def _answer(self, body: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @property
        def k(self) -> int:
            name = self.headers.get("FedAvg-Client", "enrol")
            return int(name) if name.isdecimal() else -1

        def _blocked(self) -> bool:
            said = f"{self.command} {self.path}"
            found = next((answer for start, answer in liar.in_front.items() if said.startswith(start)), None)
            if found:
                self._answer(found[1], found[0])
            return found is not None

        def do_POST(self) -> None:
            body = self._body()
            if self._blocked():
                return
            with liar.lock:
                liar.asked.append((self.k, self.path))
                if self.path == "/v1/enrol":
                    asked = json.loads(body)
                    answer = json.dumps({
                        "client": asked["client"], "epoch": "e", "run": 1, "plan": liar.plan.to_toml(),
                        "plan_digest": liar.plan.digest,
                    }).encode()  # fmt: skip
                elif self.path == "/v1/poll":
                    liar.poll_bodies.append(json.loads(body))
                    answer = liar.polls.get(self.k) or dump(WaitAnswer(0.05, 0, None))
                else:
                    liar.reports.append((self.k, json.loads(body)))
                    answer = dump(UpdateAnswer(accepted=True, duplicate=False))
            self._answer(answer)

        def do_PUT(self) -> None:
            body = self._body()
            if self._blocked():
                return
            with liar.lock:
                liar.sent.setdefault(self.k, []).append(body)
                liar.polls.pop(self.k, None)
            liar.after_upload()
            self._answer(dump(UpdateAnswer(accepted=True, duplicate=False)))

        def do_GET(self) -> None:
            with liar.lock:
                liar.asked.append((self.k, self.path))
            if self.path in liar.files:
                self._pieces(liar.files[self.path]())
            elif self.path.startswith("/v1/models/"):
                self._answer(liar.models.get(self.path.rsplit("/", 1)[1], b""))
            elif self.k in liar.inbox:
                self._answer(liar.inbox[self.k])
            else:
                self._answer(dump(Problem("no-such-message", "", None)), 404)

        def _pieces(self, pieces: Iterator[bytes]) -> None:
            self.send_response(200)
            self.send_header("Connection", "close")
            self.close_connection = True
            self.end_headers()
            try:
                for piece in pieces:
                    self.wfile.write(piece)
                    liar.bytes_out += len(piece)
            except OSError:
                pass

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def lying(plan: Plan, numbers: int) -> Iterator[Liar]:
    liar = Liar(plan, numbers)
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(liar)) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # devices are killed in mid-request
        liar.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield liar
        finally:
            server.shutdown()
            thread.join()
