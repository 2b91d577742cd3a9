"""What a request passes before its handler sees it: small objects in a list, in the order in which they are passed.

A gate refuses a call, or hands it on with what it found out: who signed it, its body, the round that it is for. Which
gates stand before which endpoint is declared where the endpoints are (`app.py`, `admin.py`).
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
#: Refusals that belong to the way of things: a server was started again, or an update came too late.
_ORDINARY: Final = ("stale-epoch", "replayed", "too-old", "wrong-round", "round-closed", "no-such-model")


@dataclass(frozen=True)
class Call:
    """A request, with what its gates found out. Numbers and sources stand in for "nobody" until a gate sets them."""

    request: Request
    #: What was signed, if anything was.
    fields: keys.SignedFields | None = None
    #: Who it is from: a client's number, or the hash of an upload token.
    source: int | bytes = b""
    round: int = 0
    attempt: int = 0
    body: bytes = b""
    #: Of those who operate the server: what whoever asked may do, and the label of the token.
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
    """Stands around a handler."""

    @abstractmethod
    async def __call__(self, call: Call, then: Handler) -> Response:
        """The answer of what comes `then`, or a `Refusal`."""


@dataclass(frozen=True)
class Endpoint:
    """What can be asked, and what stands before the answer."""

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
    """The handler, as it is reached through the gates from first to last."""
    for gate in reversed(gates):
        handler = partial(gate, then=handler)
    return handler


class Answered(Gate):
    """Whatever is refused further on becomes an answer, and is counted."""

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
    """A line of the log, by client or by whose token it was; strangers share one for each reason, however many."""
    level = logging.INFO if refusal.error in _ORDINARY else logging.WARNING
    _refused.tell(
        (refusal.error, refusal.by), level, reason=refusal.error, status=refusal.status, detail=refusal.detail[:300],
        address=call.address, request=f"{call.request.method} {call.request.url.path[:200]}", **refusal.by_name,
    )  # fmt: skip


class PacedByAddress(Gate):
    """Not too often from one address."""

    def __init__(self, rate: Buckets) -> None:
        self._rate = rate

    async def __call__(self, call: Call, then: Handler) -> Response:
        pace(self._rate.wait(call.address))
        return await then(call)


class Paced(Gate):
    """Not too often from one source."""

    def __init__(self, rate: Buckets) -> None:
        self._rate = rate

    async def __call__(self, call: Call, then: Handler) -> Response:
        pace(self._rate.wait(call.source))
        return await then(call)


class Signed(Gate):
    """Signed by a client that is enrolled and not shut out, once. Its body is not needed for that."""

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures

    async def __call__(self, call: Call, then: Handler) -> Response:
        fields, client = await self._signatures.signed(call.request)
        with refused_to(client.k):
            return await then(replace(call, fields=fields, source=client.k))


class SmallBody(Gate):
    """A body that is a message: read whole, and if the head was signed, the one that was meant."""

    def __init__(self, most: int = MESSAGE_BYTES) -> None:
        self._most = most

    async def __call__(self, call: Call, then: Handler) -> Response:
        body = await read_body(call.request, self._most)
        if call.fields is not None:
            check_body(call.fields, body)
        return await then(replace(call, body=body))


class Applying(Gate):
    """A client that would enrol: it speaks our protocol, has our task, and holds the key that it shows."""

    def __init__(self, signatures: Signatures, task: str | None) -> None:
        """Without a task, clients of any are taken."""
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
    """Shows a token of the round under way; who it was given to is not known here, and need not be."""

    def __init__(self, source_of: Callable[[str], bytes | None]) -> None:
        self._source_of = source_of

    async def __call__(self, call: Call, then: Handler) -> Response:
        source = self._source_of(call.request.headers.get("fedavg-upload-token", ""))
        if source is None:
            raise Refusal("upload-token-unknown", "the upload token is not one of this round")
        return await then(replace(call, source=source))


class Existing(Gate):
    """The run has what this path is about."""

    def __init__(self, exists: bool, detail: str) -> None:
        self._exists, self._detail = exists, detail

    async def __call__(self, call: Call, then: Handler) -> Response:
        if not self._exists:
            raise Refusal("no-such-path", self._detail)
        return await then(call)


class OfRound(Gate):
    """Names a round and an attempt in its path."""

    async def __call__(self, call: Call, then: Handler) -> Response:
        round, attempt = (path_number(call.request, name) for name in ("round", "attempt"))
        return await then(replace(call, round=round, attempt=attempt))


class Wanted(Gate):
    """What is sent is wanted now. What came before already is told so, without being read again."""

    def __init__(self, judge: Callable[[Any, int, int], Receipt]) -> None:
        self._judge = judge

    async def __call__(self, call: Call, then: Handler) -> Response:
        verdict = self._judge(call.source, call.round, call.attempt)
        return await then(call) if verdict is Receipt.ACCEPTED else receipt(verdict)


class OneUpload(Gate):
    """A large body: one at a time from each source, only as many as fit in memory, and the one that was signed."""

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
        if call.request.scope["scheme"] == "https":  # of TLS, what an upload filled stays in memory with its connection
            answer.headers["connection"] = "close"
        return answer


def receipt(verdict: Receipt) -> Response:
    """The answer to something that was sent for a round."""
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
