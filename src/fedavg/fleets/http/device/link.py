"""A device's link to its server: signed requests that are retried until they get through.

A server that is down, busy or just restarted is nothing unusual: the device waits, with growing random pauses so that
a whole fleet does not return at the same moment, signs again if it must, and continues.
"""

import logging
import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from hashlib import sha256
from importlib.metadata import version
from time import monotonic, sleep
from typing import Any, Final, TypeVar

import httpx2 as httpx

from fedavg.errors import FleetError
from fedavg.fleets.http.protocol.certs import no_tls
from fedavg.fleets.http.protocol.keys import COUNTER, ClientKey, Signer
from fedavg.fleets.http.protocol.messages import MAX_MESSAGE, Problem
from fedavg.fleets.http.protocol.silence import is_mistake, why_silent
from fedavg.fleets.http.protocol.strict import MessageRefused, dump, parse

log = logging.getLogger("fedavg.device")
T = TypeVar("T")

#: Pauses between tries, in seconds: the first, and the longest. They grow slowly, so that devices find a server that
#: was away for a few seconds within a few more.
PAUSES_S: Final = (0.2, 30.0)
GROWTH: Final = 1.5
#: Seconds to connect, and to wait for an answer beyond the time for which a poll may be held.
CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0
#: The status of an answer to a request for a range.
PARTIAL: Final = 206
#: The most bytes of a message of secure aggregation: keys and shares of all neighbours.
SESSION_BYTES: Final = 4 * 2**20
#: The status when there is nothing newer.
NOT_MODIFIED: Final = 304
#: The reason when something other than the server refused.
BLOCKED: Final = "blocked"
#: Refusals after which the request is signed again.
_SIGN_AGAIN: Final = ("stale-epoch", "replayed", "too-old")


class ServerRefused(FleetError):
    """The server refused the request; `error` is its reason, for programs."""

    def __init__(self, status: int, error: str, detail: str) -> None:
        super().__init__(f"the server refused ({error}): {detail}")
        self.status, self.error = status, error


class Blocked(ServerRefused):
    """Something between this device and its server refused the request: the answer is not of the protocol."""

    def __init__(self, url: str, status: int) -> None:
        super().__init__(status, BLOCKED, "")
        self.args = (
            f"{url} answered HTTP {status}, not as a server of this protocol does: a proxy in between refuses the "
            "request (is it too large for it?), or something else is at this address",
        )


class BadAnswer(FleetError):
    """The server's answer violates the protocol."""


@dataclass(frozen=True)
class Latest:
    """The model that clients may download: the round that produced it, its bytes and their digest."""

    round: int
    sha256: str
    data: bytes


@dataclass(frozen=True)
class Reply:
    """A server's whole answer."""

    status: int
    headers: httpx.Headers
    body: bytes


class Link:
    """Requests of one client; `patience_s`, if given, bounds how long the server may be unreachable."""

    def __init__(
        self,
        url: str,
        key: ClientKey,
        tls: ssl.SSLContext | None,
        patience_s: float | None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        """`pause` waits between tries; it raises if the device is to stop."""
        self._url = url.rstrip("/")
        self._pause: Callable[[float], None] = pause or (lambda seconds: sleep(seconds))
        self._tls = tls
        self._patience_s = patience_s
        self._http = self._new_client()
        self.signer = Signer(key, None, "none-yet")

    def close(self) -> None:
        self._http.close()

    def ask(self, kind: type[T], path: str, message: object, held_s: float = 0.0) -> T:
        """POST a message and parse the answer."""
        return self._parsed(kind, path, self._signed("POST", path, dump(message), ANSWER_S + held_s))

    def insist(self, kind: type[T], path: str, message: object, held_s: float = 0.0) -> T:
        """Like `ask`, but an invalid answer counts as an unreachable server: the request is repeated after a pause."""
        began, pause = monotonic(), PAUSES_S[0]
        while True:
            try:
                return self.ask(kind, path, message, held_s)
            except (BadAnswer, Blocked) as error:
                log.warning("malformed answer", extra={"detail": str(error)[:300]})
                self._check_patience(began)
                self._pause(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, PAUSES_S[1])

    def _parsed(self, kind: type[T], path: str, answer: bytes) -> T:
        try:
            return parse(kind, answer, MAX_MESSAGE)
        except MessageRefused as error:
            raise BadAnswer(f"{self._url}{path} answered something else than expected: {error}") from None

    def upload(self, path: str, frame: bytes) -> bytes:
        return self._signed("PUT", path, frame, ANSWER_S)

    def fetch(self, path: str) -> bytes:
        """GET something that only this client may read."""
        return self._signed("GET", path, b"", ANSWER_S, SESSION_BYTES)

    def upload_anonymously(self, path: str, frame: bytes, token: str) -> bytes:
        """Upload on a separate connection that does not identify this client."""
        headers = {"FedAvg-Upload-Token": token}
        with self._new_client() as stranger:
            return self._tried(lambda: self._send(stranger, "PUT", path, content=frame, headers=headers)).body

    def download(self, path: str, size: int) -> bytes:
        """GET an immutable file of `size` bytes; after a broken connection the download resumes."""
        there = bytearray()

        def send() -> Reply:
            headers = {"Range": f"bytes={len(there)}-"} if there else {}
            return self._send(self._http, "GET", path, limit=size, into=there, headers=headers)

        return self._tried(send).body

    def latest_model(self, size: int, known: str) -> Latest | None:
        """The model that clients may download, of at most `size` bytes; None if there is none newer than `known`."""
        more = {"If-None-Match": f'"{known}"'} if known else {}
        try:
            reply = self._signed_reply("GET", "/v1/models/latest", b"", ANSWER_S, size, more)
        except ServerRefused as refusal:
            if refusal.error == "no-such-model":
                return None
            raise
        if reply.status == NOT_MODIFIED:
            return None
        digest, round = sha256(reply.body).hexdigest(), reply.headers.get("fedavg-round", "")
        if reply.headers.get("etag") != f'"{digest}"' or not (round.isdecimal() and len(round) <= 10):
            raise BadAnswer(f"{self._url}/v1/models/latest: the model that came does not have the SHA-256 of its ETag")
        return Latest(int(round), digest, reply.body)

    def _signed(self, method: str, path: str, body: bytes, timeout_s: float, limit: int = MAX_MESSAGE) -> bytes:
        return self._signed_reply(method, path, body, timeout_s, limit, {}).body

    def _signed_reply(
        self, method: str, path: str, body: bytes, timeout_s: float, limit: int, more: dict[str, str]
    ) -> Reply:
        def send() -> Reply:
            headers = self.signer.headers(method, path, body) | more
            timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
            return self._send(self._http, method, path, limit=limit, content=body, headers=headers, timeout=timeout)

        return self._tried(send)

    def _send(
        self,
        http: httpx.Client,
        method: str,
        path: str,
        *,
        limit: int = MAX_MESSAGE,
        into: bytearray | None = None,
        **request: Any,
    ) -> Reply:
        """The answer, of at most `limit` bytes received, so that no server can fill this device's memory.

        The body of a success is appended to `into`, if given; unless it is partial content, `into` is cleared first.
        """
        with http.stream(method, self._url + path, **request) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise BadAnswer(f"{self._url}{path} answered with a content encoding; expected the bytes as they are")
            body = into if into is not None and response.is_success else bytearray()
            if response.status_code != PARTIAL:
                body.clear()
            for piece in response.iter_raw():
                if len(body) + len(piece) > limit:
                    raise BadAnswer(f"{self._url}{path} answered more than {limit} bytes")
                body += piece
            return Reply(response.status_code, response.headers, bytes(body))

    def _tried(self, send: Callable[[], Reply]) -> Reply:
        """Send until there is a final answer."""
        pause, longest = PAUSES_S
        began = monotonic()
        signed_again = 0
        while True:
            wait = pause
            try:
                reply = send()
                if 200 <= reply.status < 300 or reply.status == NOT_MODIFIED:
                    return reply
                wait = self._refused(reply, pause, signed_again)
                signed_again += 1
            except httpx.TransportError as error:
                log.warning("the server does not answer", extra={"detail": why_silent(self._url, error)[:400]})
                if isinstance(error, httpx.ConnectError) and is_mistake(error):
                    raise FleetError(why_silent(self._url, error)) from None
            self._check_patience(began)
            if wait:
                self._pause(wait * random.uniform(0.5, 1.5))
                pause = min(GROWTH * pause, longest)
            else:  # the server is there and only wants a new signature, so the pauses start over
                pause = PAUSES_S[0]

    def _check_patience(self, began: float) -> None:
        if self._patience_s is not None and monotonic() - began > self._patience_s:
            raise FleetError(
                f"{self._url} has not answered for {self._patience_s:g} s; is the server running? The log says what "
                "went wrong each time"
            )

    def _refused(self, reply: Reply, pause: float, signed_again: int) -> float:
        """How long to wait before another try; raises if another try is useless."""
        problem = _problem(reply)
        if problem is None and reply.status < 500:
            raise Blocked(self._url, reply.status)
        if problem is None:  # a proxy whose server is unreachable
            return max(pause, _retry_after(reply))
        if reply.status == 401 and problem.error in _SIGN_AGAIN:
            highest = reply.headers.get(COUNTER, "")
            seen = int(highest) if highest.isdecimal() and len(highest) < 20 else 0
            self.signer.resync(problem.epoch or self.signer.epoch, seen)
            # Epoch and counter may both be out of date: sign again twice at once, then only after a pause.
            return 0.0 if signed_again < 2 else pause
        if reply.status in (429, 503):
            return max(pause, _retry_after(reply))
        if reply.status >= 500 or problem.error == "upload-under-way":
            return pause
        raise ServerRefused(reply.status, problem.error, problem.detail)

    def _new_client(self) -> httpx.Client:
        return httpx.Client(
            verify=self._tls or no_tls(),
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            headers={"Accept-Encoding": "identity", "User-Agent": f"fedavg/{version('fedavg')}"},
            follow_redirects=False,
            trust_env=True,
        )


def _problem(reply: Reply) -> Problem | None:
    """Why the server refuses; None if the answer is not the server's."""
    try:
        return parse(Problem, reply.body, MAX_MESSAGE)
    except MessageRefused:
        return None


def _retry_after(reply: Reply) -> float:
    """Seconds; the header's other form, a date, would require both clocks to be right."""
    text = reply.headers.get("retry-after", "")
    if text.isdecimal():
        return min(float(text), PAUSES_S[1])
    with suppress(ValueError):
        parsedate_to_datetime(text)
        return PAUSES_S[1]
    return 0.0
