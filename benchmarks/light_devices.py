"""Light clients: they speak the full protocol of the fleet, sign every request, and do no work between requests.

Thousands of them fit into one event loop, so that the server is what is measured.
"""

import asyncio
import json
import ssl
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from fedavg.fleets.http.protocol.keys import ClientKey, Signer
from fedavg.fleets.http.protocol.messages import PROTOCOL, Eligibility, EnrolRequest, PollRequest, Taken
from fedavg.fleets.http.protocol.strict import dump

#: n_k of every client.
EXAMPLES = 30


@dataclass(frozen=True)
class Server:
    """Where the server is, and how to join it."""

    host: str
    port: int
    token: str
    task: str
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True)
class Body:
    """Bytes that are sent many times: hashed once."""

    data: bytes
    digest: str

    @classmethod
    def of(cls, data: bytes) -> "Body":
        return cls(data, sha256(data).hexdigest())


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.body)
        return content


class ConnectionCut(Exception):
    """The server, or the network, ended the connection before there was an answer."""


class Wire(asyncio.Protocol):
    """One HTTP/1.1 connection, one request at a time; reads only answers with a length, as the server's have."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._reply: asyncio.Future[Reply] | None = None
        self.transport: asyncio.Transport | None = None
        self.cut = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end]).decode("latin-1").lower()
        length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
        if len(self._buffer) < end + 4 + length:
            return
        reply = Reply(int(head.split(" ", 2)[1]), bytes(self._buffer[end + 4 : end + 4 + length]))
        del self._buffer[: end + 4 + length]
        if "\r\nconnection: close" in head and self.transport:
            self.transport.close()
            self.transport = None
        if self._reply and not self._reply.done():
            self._reply.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.cut.set()
        self.transport = None
        if self._reply and not self._reply.done():
            self._reply.set_exception(ConnectionCut(str(exc)))

    def send(self, head: bytes, body: bytes = b"") -> "asyncio.Future[Reply]":
        if self.transport is None:
            raise ConnectionCut("the connection is closed")
        self._reply = asyncio.get_running_loop().create_future()
        self.transport.write(head)
        if body:
            self.transport.write(body)
        return self._reply


class LightClient:
    """One enrolled client on one persistent connection; `source` is its loopback address."""

    def __init__(self, server: Server, source: str | None = None, epoch: str = "none-yet") -> None:
        self.server, self._source = server, source
        self._key = ClientKey.generate()
        self._signer = Signer(self._key, None, epoch)
        self._wire: Wire | None = None
        #: The run that it was enrolled for.
        self.taken: Taken | None = None

    def on_another_connection(self) -> "LightClient":
        """The same client on a second connection."""
        other = LightClient(self.server, self._source)
        other._key, other._signer, other.taken = self._key, self._signer, self.taken
        return other

    async def connect(self) -> Wire:
        """The connection; a new one if there is none."""
        if self._wire is None or self._wire.transport is None:
            local = (self._source, 0) if self._source else None
            _, self._wire = await asyncio.get_running_loop().create_connection(
                Wire, self.server.host, self.server.port, ssl=self.server.tls, local_addr=local
            )
        return self._wire

    def close(self) -> None:
        if self._wire and self._wire.transport:
            self._wire.transport.close()
        self._wire = None

    async def enrol(self) -> dict[str, Any]:
        request = EnrolRequest(
            token=self.server.token,
            key=b64encode(self._key.public).decode(),
            examples=EXAMPLES,
            name="",
            client=None,
            tasks=[self.server.task],
            protocol=PROTOCOL,
        )
        body = Body.of(dump(request))
        reply = await self.ask("POST", "/v1/enrol", body)
        if reply.status == 401:  # the epoch was not known yet
            self._signer.resync(reply.json()["epoch"])
            reply = await self.ask("POST", "/v1/enrol", body)
        if reply.status != 200:
            raise RuntimeError(f"enrolment refused: {reply.status} {reply.body!r}")
        answer = reply.json()
        self._signer.client = answer["client"]
        self.taken = Taken(answer["run"], answer["plan_digest"])
        self._signer.resync(answer["epoch"])
        return answer

    async def ask(self, method: str, path: str, body: Body) -> Reply:
        wire = await self.connect()
        return await wire.send(self.head(method, path, body), body.data)

    def head(self, method: str, path: str, body: Body) -> bytes:
        """The signed head of a request."""
        lines = [f"{method} {path} HTTP/1.1", "Host: fleet", f"Content-Length: {len(body.data)}"]
        lines += [f"{name}: {value}" for name, value in self._signer.headers(method, path, body.digest).items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def poll(self, body: Body) -> dict[str, Any]:
        reply = await self.ask("POST", "/v1/poll", body)
        if reply.status != 200:
            raise RuntimeError(f"poll refused: {reply.status} {reply.body!r}")
        return reply.json()


def poll_body(wait_s: float, taken: Taken | None, eligible: bool = True) -> Body:
    """The body of a poll; a client that is not eligible gets the same answers, but is never drawn."""
    eligibility = Eligibility(charging=eligible, unmetered=True, idle=True)
    request = PollRequest(eligible=eligibility, examples=EXAMPLES, holding=None, run=taken, wait_s=wait_s)
    return Body.of(dump(request))
