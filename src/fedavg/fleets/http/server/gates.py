"""What a request passes before its handler sees it: a list of small objects, in the order in which they run.

A gate refuses a call, or passes it on with what it found out: who signed it, its body, the round that it is for. The
gates of each endpoint are declared with the endpoints (`app.py`, `admin.py`).
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.messages import PROTOCOL, EnrolRequest, UpdateAnswer
from fedavg.fleets.http.protocol.strict import dump
from fedavg.fleets.http.server.bodies import MESSAGE_BYTES, Body, check_body, parse_body, read_body
from fedavg.fleets.http.server.limits import Buckets
from fedavg.fleets.http.server.logs import SeldomBy
from fedavg.fleets.http.server.metrics import Requests
from fedavg.fleets.http.server.refusals import Refusal, pace, problem, refused_to
from fedavg.fleets.http.server.rounds import Receipt
from fedavg.fleets.http.server.signatures import Signatures
from fedavg.fleets.http.server.turns import BEGINNING, Turns

_refused = SeldomBy(logging.getLogger("fedavg.fleet"), "request refused")
#: Refusals in normal operation: the server was restarted, or an update came too late.
_ORDINARY: Final = ("stale-epoch", "replayed", "too-old", "wrong-round", "round-closed", "no-such-model")


@dataclass(frozen=True)
class Call:
    """A request, with what its gates found out. Numbers and sources stand in for "nobody" until a gate sets them."""

    request: Request
    #: The signed fields, if there is a signature.
    fields: keys.SignedFields | None = None
    #: Who it is from: a client's number, or the hash of an upload token.
    source: int | bytes = b""
    round: int = 0
    attempt: int = 0
    body: bytes = b""
    #: For operators' requests: the role, and the label of the token.
    role: str = ""
    who: str = ""

    @property
    def k(self) -> int:
        """The client that signed it."""
        assert isinstance(self.source, int)
        return self.source

    @property
    def address(self) -> str:
        return self.request.client.host if self.request.client else ""


Handler = Callable[[Call], Awaitable[Response]]


class Gate(ABC):
    """Wraps a handler."""

    @abstractmethod
    async def __call__(self, call: Call, then: Handler) -> Response:
        """Return the answer of `then`, or raise a `Refusal`."""


@dataclass(frozen=True)
class Endpoint:
    """A path with its gates and its handler."""

    method: str
    path: str
    handler: Handler
    gates: Sequence[Gate] = ()

    def route(self, *outermost: Gate) -> Route:
        handler = behind([*outermost, *self.gates], self.handler)

        async def answer(request: Request) -> Response:
            return await handler(Call(request))

        return Route(self.path, answer, methods=[self.method])


def behind(gates: Sequence[Gate], handler: Handler) -> Handler:
    """The handler wrapped in the gates, the first outermost."""
    for gate in reversed(gates):
        handler = partial(gate, then=handler)
    return handler


class Answered(Gate):
    """Turns refusals of later gates and the handler into answers, and counts them."""

    def __init__(self, requests: Requests, epoch: Callable[[], str]) -> None:
        self._requests, self._epoch = requests, epoch

    async def __call__(self, call: Call, then: Handler) -> Response:
        try:
            response = await then(call)
        except Refusal as refusal:
            response = problem(refusal, self._epoch() if refusal.error == "stale-epoch" else None)
            self._requests.refused(refusal.error)
            _tell(call, refusal)
        except ClientDisconnect:
            response = Response(status_code=400)
        self._requests.answered(response.status_code)
        return response


def _tell(call: Call, refusal: Refusal) -> None:
    """Log a refusal, by client or token holder; all strangers share one line for each reason."""
    level = logging.INFO if refusal.error in _ORDINARY else logging.WARNING
    _refused.tell(
        (refusal.error, refusal.by), level, reason=refusal.error, status=refusal.status, detail=refusal.detail[:300],
        address=call.address, request=f"{call.request.method} {call.request.url.path[:200]}", **refusal.by_name,
    )  # fmt: skip


class PacedByAddress(Gate):
    """Limits the rate of each address."""

    def __init__(self, rate: Buckets) -> None:
        self._rate = rate

    async def __call__(self, call: Call, then: Handler) -> Response:
        pace(self._rate.wait(call.address))
        return await then(call)


class Paced(Gate):
    """Limits the rate of each source."""

    def __init__(self, rate: Buckets) -> None:
        self._rate = rate

    async def __call__(self, call: Call, then: Handler) -> Response:
        pace(self._rate.wait(call.source))
        return await then(call)


class Signed(Gate):
    """Requires a signature, used once, of a client that is enrolled and not shut out. Does not need the body."""

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures

    async def __call__(self, call: Call, then: Handler) -> Response:
        fields, client = await self._signatures.signed(call.request)
        with refused_to(client.k):
            return await then(replace(call, fields=fields, source=client.k))


class SmallBody(Gate):
    """Reads a body that is a message. If the head was signed, the body must match the signed digest."""

    def __init__(self, most: int = MESSAGE_BYTES) -> None:
        self._most = most

    async def __call__(self, call: Call, then: Handler) -> Response:
        body = await read_body(call.request, self._most)
        if call.fields is not None:
            check_body(call.fields, body)
        return await then(replace(call, body=body))


class Applying(Gate):
    """Checks a client that wants to enrol: it speaks our protocol, has our task, and holds the private key."""

    def __init__(self, signatures: Signatures, task: str | None) -> None:
        """Without a task, clients with any task are accepted."""
        self._signatures, self._task = signatures, task

    async def __call__(self, call: Call, then: Handler) -> Response:
        message = parse_body(EnrolRequest, call.body)
        if message.protocol != PROTOCOL:
            raise Refusal("wrong-protocol", f"got version {message.protocol}; this server speaks {PROTOCOL}")
        if self._task is not None and self._task not in message.tasks:
            raise Refusal("wrong-task", f"got {', '.join(message.tasks)}; this run trains '{self._task}'")
        self._signatures.check_signature(call.request, b64decode(message.key), None, call.body)
        return await then(call)


class UploadToken(Gate):
    """Requires an upload token of the round under way. The server does not know which client received it."""

    def __init__(self, source_of: Callable[[str], bytes | None]) -> None:
        self._source_of = source_of

    async def __call__(self, call: Call, then: Handler) -> Response:
        source = self._source_of(call.request.headers.get("fedavg-upload-token", ""))
        if source is None:
            raise Refusal("upload-token-unknown", "the upload token is not one of this round")
        return await then(replace(call, source=source))


class Existing(Gate):
    """Requires that the run has what this path is about."""

    def __init__(self, exists: bool, detail: str) -> None:
        self._exists, self._detail = exists, detail

    async def __call__(self, call: Call, then: Handler) -> Response:
        if not self._exists:
            raise Refusal("no-such-path", self._detail)
        return await then(call)


class OfRound(Gate):
    """Reads the round and the attempt from the path."""

    async def __call__(self, call: Call, then: Handler) -> Response:
        round, attempt = (path_number(call.request, name) for name in ("round", "attempt"))
        return await then(replace(call, round=round, attempt=attempt))


class Wanted(Gate):
    """Requires that what is sent is wanted now. A duplicate is answered as such without being read again."""

    def __init__(self, judge: Callable[[Any, int, int], Receipt]) -> None:
        self._judge = judge

    async def __call__(self, call: Call, then: Handler) -> Response:
        verdict = self._judge(call.source, call.round, call.attempt)
        return await then(call) if verdict is Receipt.ACCEPTED else receipt(verdict)


class OneUpload(Gate):
    """Reads a large body: one at a time from each source, as many at once as fit in memory, matching the signature."""

    def __init__(self, turns: Turns, limit: Callable[[], int], workers: Executor) -> None:
        self._turns, self._limit, self._workers = turns, limit, workers
        self._under_way: set[object] = set()

    async def __call__(self, call: Call, then: Handler) -> Response:
        if call.source in self._under_way:
            raise Refusal("upload-under-way", "another upload of this source is under way")
        self._under_way.add(call.source)
        try:
            limit = self._limit()
            upload = Body(call.request, limit)
            await upload.read(BEGINNING)
            async with self._turns.one(limit):
                body = await upload.read()
                if call.fields is not None:
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(self._workers, check_body, call.fields, body)
                answer = await then(replace(call, body=body))
        finally:
            self._under_way.discard(call.source)
        if call.request.scope["scheme"] == "https":  # a TLS connection keeps the buffers that an upload filled
            answer.headers["connection"] = "close"
        return answer


def receipt(verdict: Receipt) -> Response:
    """The answer to an upload for a round."""
    if verdict not in (Receipt.ACCEPTED, Receipt.DUPLICATE):
        raise Refusal(verdict, "this is not wanted now; poll for work")
    return json_answer(UpdateAnswer(accepted=True, duplicate=verdict is Receipt.DUPLICATE))


def json_answer(message: object) -> Response:
    return Response(dump(message), media_type="application/json")


def path_number(request: Request, name: str) -> int:
    text = str(request.path_params[name])
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and text == str(int(text))):
        raise Refusal("no-such-path", f"{name} is not a number of a {name}")
    return int(text)
