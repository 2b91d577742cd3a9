"""A device's way to its server: signed requests that are tried again until they get through.

A server that is down, busy or just restarted is nothing unusual: the device waits, with growing pauses of random
length so that a whole fleet does not come back at the same moment, signs again where it must, and goes on.
"""

import logging
import random
import ssl
from contextlib import suppress
from email.utils import parsedate_to_datetime
from time import monotonic, sleep
from typing import Final, TypeVar

import httpx2 as httpx

from fedavg.errors import FleetError
from fedavg.fleets.http.keys import COUNTER, ClientKey, Signer
from fedavg.fleets.http.messages import MAX_MESSAGE, MessageRefused, Problem, dump, parse

log = logging.getLogger("fedavg.device")
T = TypeVar("T")

#: Pauses between tries, seconds: the first, and the longest. They grow slowly, so that a server which is back after a
#: few seconds is found within a few more.
PAUSES_S: Final = (0.2, 30.0)
GROWTH: Final = 1.5
#: Seconds to connect, and for the server to say something beyond what a poll may be held for.
CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0
#: Refusals that a new signature mends.
_SIGN_AGAIN: Final = ("stale-epoch", "replayed", "too-old")


class ServerRefused(FleetError):
    """The server will not take the request; `error` is its reason for programs."""

    def __init__(self, status: int, error: str, detail: str) -> None:
        super().__init__(f"the server refused ({error}): {detail}")
        self.status, self.error = status, error


class Link:
    """Requests in the name of one client; `patience_s` bounds how long a server may be away, if given."""

    def __init__(self, url: str, key: ClientKey, tls: ssl.SSLContext | None, patience_s: float | None) -> None:
        self._url = url.rstrip("/")
        self._tls = tls
        self._patience_s = patience_s
        self._http = self._new_client()
        self.signer = Signer(key, None, "none-yet")

    @property
    def epoch(self) -> str:
        return self.signer.epoch

    def close(self) -> None:
        self._http.close()

    def ask(self, kind: type[T], path: str, message: object, held_s: float = 0.0) -> T:
        """POST a message and parse the answer."""
        body = dump(message)
        response = self._signed("POST", path, body, ANSWER_S + held_s)
        try:
            return parse(kind, response.content, MAX_MESSAGE)
        except MessageRefused as error:
            raise FleetError(f"{self._url}{path} answered something else than expected: {error}") from None

    def upload(self, path: str, frame: bytes) -> bytes:
        return self._signed("PUT", path, frame, ANSWER_S).content

    def upload_anonymously(self, path: str, frame: bytes, token: str) -> bytes:
        """On a connection of its own that carries nothing of this client's identity."""
        with self._new_client() as stranger:
            headers = {"FedAvg-Upload-Token": token}
            return self._tried(lambda: stranger.put(self._url + path, content=frame, headers=headers)).content

    def download(self, path: str, have: bytes) -> bytes:
        """GET a file that never changes, going on after the bytes that are there already."""
        headers = {"Range": f"bytes={len(have)}-"} if have else {}
        response = self._tried(lambda: self._http.get(self._url + path, headers=headers))
        return have + response.content if response.status_code == 206 else response.content

    def _signed(self, method: str, path: str, body: bytes, timeout_s: float) -> httpx.Response:
        def send() -> httpx.Response:
            headers = self.signer.headers(method, path, body)
            timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
            return self._http.request(method, self._url + path, content=body, headers=headers, timeout=timeout)

        return self._tried(send)

    def _tried(self, send: "object") -> httpx.Response:
        """Send until there is an answer that stands."""
        assert callable(send)
        pause, longest = PAUSES_S
        began = monotonic()
        while True:
            wait = pause
            try:
                response: httpx.Response = send()
                if response.is_success:
                    return response
                wait = self._refused(response, pause)
            except httpx.TransportError as error:
                log.warning("the server does not answer", extra={"url": self._url, "detail": str(error)[:200]})
                if isinstance(error, httpx.ConnectError) and "certificate" in str(error).lower():
                    raise FleetError(f"{self._url}: {error}; give the server's authority with --ca") from None
            if self._patience_s is not None and monotonic() - began > self._patience_s:
                raise FleetError(f"{self._url} has not answered for {self._patience_s:g} s; is the server running?")
            if wait:
                sleep(wait * random.uniform(0.5, 1.5))
                pause = min(GROWTH * pause, longest)
            else:  # it is there, and only wants another signature: should it go away again, that is a new beginning
                pause = PAUSES_S[0]

    def _refused(self, response: httpx.Response, pause: float) -> float:
        """How long to wait before another try; raises if there is no use in one."""
        problem = _problem(response)
        if response.status_code == 401 and problem.error in _SIGN_AGAIN:
            highest = response.headers.get(COUNTER, "0")
            self.signer.resync(problem.epoch or self.signer.epoch, int(highest) if highest.isdecimal() else 0)
            return 0.0
        if response.status_code in (429, 503):
            return max(pause, _retry_after(response))
        if response.status_code >= 500 or problem.error == "upload-under-way":
            return pause
        raise ServerRefused(response.status_code, problem.error, problem.detail)

    def _new_client(self) -> httpx.Client:
        verify = self._tls if self._tls is not None else True
        return httpx.Client(
            verify=verify,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            headers={"Accept-Encoding": "identity"},
            trust_env=True,
        )


def _problem(response: httpx.Response) -> Problem:
    try:
        return parse(Problem, response.content, MAX_MESSAGE)
    except MessageRefused:
        return Problem(error="unknown", detail=f"HTTP status {response.status_code}", epoch=None)


def _retry_after(response: httpx.Response) -> float:
    """Seconds; the other form of the header, a date, would need both clocks to be right."""
    text = response.headers.get("retry-after", "")
    if text.isdecimal():
        return min(float(text), PAUSES_S[1])
    with suppress(ValueError):
        parsedate_to_datetime(text)
        return PAUSES_S[1]
    return 0.0
