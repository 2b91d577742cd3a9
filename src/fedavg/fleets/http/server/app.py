"""The HTTP application: what a client can ask of the server (docs/protocol.md).

Every request is hostile until its signature is checked, and stays bounded in size, time and rate after that. A handler
answers with a message, or raises a `Refusal` that becomes a 4xx with a machine-readable reason; it never answers 500.
"""

import asyncio
import logging
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from math import inf
from time import time
from typing import Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.messages import (
    MAX_MESSAGE,
    PROBLEMS,
    PROTOCOL,
    Enrolled,
    EnrolRequest,
    Holding,
    MessageRefused,
    PollRequest,
    Problem,
    ReportRequest,
    Settling,
    UpdateAnswer,
    dump,
    parse,
    printable,
)
from fedavg.fleets.http.protocol.wire import UpdateRefused
from fedavg.fleets.http.server import metrics
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.limits import Buckets
from fedavg.fleets.http.server.rounds import Verdict
from fedavg.fleets.http.server.store import ClientRow, EnrolRefused, Store, StoreError
from fedavg.plan import Plan

log = logging.getLogger("fedavg.fleet")

#: Bytes of a JSON request: none needs more.
MESSAGE_BYTES: Final = 8 * 1024
#: Seconds of grace for a body, and the bytes a second that it must keep up beyond that.
BODY_S: Final = 8.0
SLOWEST_UPLOAD: Final = 64 * 1024
#: Bytes of uploads that may be in memory at a time, and those of one that are read before it needs a turn for that: who
#: sends next to nothing takes no turn from others.
UPLOAD_BYTES: Final = 256 * 2**20
BEGINNING: Final = 16 * 1024
#: Uploads that begin to be read at a time, and the seconds after which a slow one makes room for the next. Each pass of
#: the event loop takes a piece of every upload that has one, and everyone else waits for the pass.
FAST_LANE: Final = 64
FAST_LANE_S: Final = 0.25
#: Bytes of a model that are on the way to one client at a time.
PIECE_BYTES: Final = 256 * 1024
#: Seconds that an upload waits for its turn before it is told to come back, and how many may wait: of each, what came
#: with its head, up to some 300 KB, is in memory already.
TURN_S: Final = 10.0
WAITING: Final = 512
#: Held polls that are answered at a time when a round begins, and the seconds between (more if the loop is busy): all
#: of a cohort at once would keep everyone else waiting, and come back with their updates at once.
WAKE: Final = 20
WAKE_S: Final = 0.005
#: Stands in for the key of a client that is not there: its private half was never kept.
NOBODYS_KEY: Final = keys.ClientKey.generate().public
#: The status of an update frame that is refused; its reason is a `wire.Reason`.
UPDATE_REFUSED: Final = 422

Handler = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")


class Refusal(Exception):
    """The request is refused: a reason for programs, which has its HTTP status, and one for people."""

    def __init__(
        self, error: str, detail: str, headers: dict[str, str] | None = None, status: int | None = None
    ) -> None:
        super().__init__(detail)
        self.error, self.detail, self.headers = error, detail, headers or {}
        self.status = PROBLEMS[error] if status is None else status


class FleetApp:
    """The client-facing side of a server; `asgi` is the application."""

    def __init__(self, plan: Plan, hub: Hub, store: Store) -> None:
        self._plan, self._hub, self._store = plan, hub, store
        self._plan_toml = plan.to_toml()
        self._guard = keys.ReplayGuard()
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}
        self._client_rate = Buckets(rate=20, burst=60)
        self._address_rate = Buckets(rate=50, burst=500)
        self._uploading: set[object] = set()
        self._turns = Turns(UPLOAD_BYTES)
        #: Decoding and adding are C code without the interpreter's lock: two threads keep both halves of it busy.
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="update")
        self.requests: metrics.Requests = metrics.Requests()
        self.asgi = Starlette(
            routes=[
                self._route("POST", "/v1/enrol", self._enrol),
                self._route("POST", "/v1/poll", self._poll),
                self._route("GET", "/v1/models/{digest}", self._model),
                self._route("GET", "/v1/models/{digest}/changes/{count}", self._changes),
                self._route("PUT", "/v1/rounds/{round}/{attempt}/update", self._update),
                self._route("PUT", "/v1/rounds/{round}/{attempt}/anonymous", self._anonymous),
                self._route("GET", "/v1/rounds/{round}/{attempt}/session", self._session_message),
                self._route("PUT", "/v1/rounds/{round}/{attempt}/session", self._session_answer),
                self._route("POST", "/v1/report", self._report),
                self._route("GET", "/healthz", self._health),
                self._route("GET", "/metrics", self._metrics),
                self._route("GET", "/v1/status", self._status),
            ],
            middleware=PLAIN_PATHS,
            exception_handlers=HTTP_PROBLEMS,
        )
        self.asgi.router.redirect_slashes = False  # a path is right or it is not

    @property
    def epoch(self) -> str:
        return self._guard.epoch

    def run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on the hub can wake polls that are held in this loop."""

        def wake(clients: Iterable[int]) -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(self._wake, loop, deque(clients))

        self._hub.wake = wake

    def close(self) -> None:
        self._workers.shutdown()

    def _wake(self, loop: asyncio.AbstractEventLoop, clients: deque[int]) -> None:
        woken = 0
        while clients and woken < WAKE:
            for poll in self._waiting.get(clients.popleft(), ()):
                _settle(poll)
                woken += 1
        if clients:
            loop.call_later(WAKE_S, self._wake, loop, clients)

    def _route(self, method: str, path: str, handler: Handler) -> Route:
        return Route(path, self.guarded(handler), methods=[method])

    def guarded(self, handler: Handler) -> Handler:
        """The handler, with whatever it refuses turned into an answer, and counted."""

        async def answer(request: Request) -> Response:
            try:
                response = await handler(request)
            except Refusal as refusal:
                response = problem(refusal, self.epoch if refusal.error == "stale-epoch" else None)
                self.requests.refused(refusal.error)
            except ClientDisconnect:
                response = Response(status_code=400)
            self.requests.answered(response.status_code)
            return response

        return answer

    # Handlers

    async def _enrol(self, request: Request) -> Response:
        address = request.client.host if request.client else ""
        _pace(self._address_rate.wait(address))
        body = await read_body(request, MESSAGE_BYTES)
        message = parse_body(EnrolRequest, body)
        if message.protocol != PROTOCOL:
            raise Refusal("wrong-protocol", f"got version {message.protocol}; this server speaks {PROTOCOL}")
        if message.task != self._plan.task:
            raise Refusal("wrong-task", f"got '{message.task}'; this run trains '{self._plan.task}'")
        key = b64decode(message.key)
        self._check_signature(request, key, None, body)
        try:
            row = await self.blocking(
                partial(
                    self._store.enrol, keys.token_hash(message.token), key, message.examples, message.name,
                    message.client, self._plan.clients, now=time(), address=address,
                    approved=not self._hub.guards.approval,
                )
            )  # fmt: skip
        except EnrolRefused as error:
            raise Refusal(error.reason, str(error)) from None
        self._hub.know([row])
        log.info("client enrolled", extra={"client": row.k, "examples": row.examples, "approved": row.approved})
        answer = Enrolled(client=row.k, epoch=self.epoch, plan=self._plan_toml, plan_digest=self._plan.digest)
        return _json(answer)

    async def _poll(self, request: Request) -> Response:
        client, body = await self._signed(request)
        message = parse_body(PollRequest, body)
        eligible = message.eligible
        self._hub.see(client.k, eligible.charging and eligible.unmetered and eligible.idle)
        answer = self._hub.answer(client.k)
        held = False
        if answer is None and message.wait_s > 0 and not self._hub.stopping and self._hub.hold(client.k):
            held = True
            try:
                await self._woken(client.k, message.wait_s)
            finally:
                self._hub.release(client.k)
            self._check_revoked(client.k)
            answer = self._hub.answer(client.k)
        answer = answer or self._hub.wait_answer(held)
        if message.holding is not None and isinstance(answer, Settling):
            answer = replace(answer, counted=await self._counted(client.k, message.holding))
        return _json(answer)

    async def _counted(self, k: int, held: Holding) -> bool | None:
        """Is the update that a client holds part of its round? None while that is open; without names nobody knows."""
        if held.round > self._hub.last_committed or self._hub.guards.anonymous:
            return None
        counted = self._hub.counted_in(held.round)
        if counted is None:
            counted = await self.blocking(self._store.counted, held.round)
            self._hub.remember(held.round, counted)
        return held.attempt == counted.attempt and k in counted.clients

    async def _woken(self, k: int, seconds: float) -> None:
        """Until there is something for the client, or the time is over. A bare future is what the least memory holds.

        One poll of a client is held, the newest: an older one is of a connection that it has given up, and its end
        leaves the new one be.
        """
        loop = asyncio.get_running_loop()
        for older in self._waiting.get(k, ()):
            _settle(older)
        poll: asyncio.Future[None] = loop.create_future()
        waiting = self._waiting.setdefault(k, set())
        waiting.add(poll)
        timer = loop.call_later(seconds, _settle, poll)
        try:
            await poll
        finally:
            timer.cancel()
            waiting.discard(poll)
            if not waiting:
                del self._waiting[k]

    async def _model(self, request: Request) -> Response:
        """Content-addressed, so it never changes and anyone may keep it; ranges let a cut download go on."""
        digest = request.path_params["digest"]
        data = self._hub.model(digest)
        if data is None:
            raise Refusal("no-such-model", "this model is not on offer (any more); poll for work")
        return _file(request, digest, memoryview(data))

    async def _changes(self, request: Request) -> Response:
        """The last changes that lead to a model, each after its length: for who has had an earlier one."""
        digest, count = request.path_params["digest"], _path_number(request, "count")
        data = self._hub.changes(digest, count)
        if data is None:
            raise Refusal("no-such-model", "so many changes of this model are not on offer; fetch the whole model")
        return _file(request, f"{digest}-{count}", data)

    async def _update(self, request: Request) -> Response:
        fields, client = self._authenticated(request)
        _pace(self._client_rate.wait(client.k))
        return await self._take(request, client.k, fields)

    async def _anonymous(self, request: Request) -> Response:
        """The update of somebody who was invited; who it is is not known here, and need not be."""
        token = request.headers.get("fedavg-upload-token", "")
        source = self._hub.token_source(token)
        if source is None:
            raise Refusal("upload-token-unknown", "the upload token is not one of this round")
        _pace(self._client_rate.wait(source))
        return await self._take(request, source, None)

    async def _take(self, request: Request, source: int | bytes, fields: keys.SignedFields | None) -> Response:
        round, attempt = _round_and_attempt(request)
        verdict = self._hub.judge(source, round, attempt)
        if verdict is Verdict.ACCEPTED:
            verdict = await self._receive(request, source, fields, round, attempt)
        if verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE):
            raise Refusal(verdict, "this update is not wanted now; poll for work")
        answer = _json(UpdateAnswer(accepted=True, duplicate=verdict is Verdict.DUPLICATE))
        if request.scope["scheme"] == "https":  # of TLS, what an upload filled stays in memory with its connection
            answer.headers["connection"] = "close"
        return answer

    async def _receive(
        self, request: Request, source: int | bytes, fields: keys.SignedFields | None, round: int, attempt: int
    ) -> Verdict:
        """Read an update, one at a time from each source and only as many as fit in memory, and add it."""
        try:
            async with self._upload(request, source, self._hub.frame_limit()) as frame:
                return await asyncio.get_running_loop().run_in_executor(
                    self._workers, self._check_and_add, source, round, attempt, frame, fields
                )
        except UpdateRefused as error:
            self._hub.refuse(source, round, attempt, str(error.reason))
            raise Refusal(error.reason, str(error), status=UPDATE_REFUSED) from None

    @asynccontextmanager
    async def _upload(self, request: Request, source: int | bytes, limit: int) -> AsyncIterator[bytes]:
        """The body of an upload that is wanted: one at a time from each source, and only as many as fit in memory."""
        if source in self._uploading:
            raise Refusal("upload-under-way", "another upload of this source is under way")
        self._uploading.add(source)
        try:
            body = Body(request, limit)
            await body.read(BEGINNING)
            async with self._turns.one(limit):
                yield await body.read()
        finally:
            self._uploading.discard(source)

    def _check_and_add(
        self, source: int | bytes, round: int, attempt: int, frame: bytes, fields: keys.SignedFields | None
    ) -> Verdict:
        if fields is not None:
            _check_body(fields, frame)
        return self._hub.add(source, round, attempt, memoryview(frame))

    async def _session_message(self, request: Request) -> Response:
        """The message of a session of secure aggregation that waits for this client."""
        self._check_masked()
        client, _ = await self._signed(request)
        message = self._hub.session_message(client.k, *_round_and_attempt(request))
        if message is None:
            raise Refusal("no-such-message", "no message of a session waits for this client; poll for work")
        return Response(message, media_type="application/octet-stream")

    async def _session_answer(self, request: Request) -> Response:
        self._check_masked()
        fields, client = self._authenticated(request)
        _pace(self._client_rate.wait(client.k))
        round, attempt = _round_and_attempt(request)
        verdict = self._hub.judge_session(client.k, round, attempt)
        if verdict is Verdict.ACCEPTED:
            async with self._upload(request, client.k, self._hub.frame_limit()) as body:
                verdict = await asyncio.get_running_loop().run_in_executor(
                    self._workers, self._check_and_carry, client.k, round, attempt, body, fields
                )
        if verdict is not Verdict.ACCEPTED:
            raise Refusal(verdict, "this message is not wanted now; poll for work")
        return _json(UpdateAnswer(accepted=True, duplicate=False))

    def _check_masked(self) -> None:
        if self._plan.secagg == "none":
            raise Refusal("no-such-path", "this run has no secure aggregation, and so no sessions")

    def _check_and_carry(self, k: int, round: int, attempt: int, body: bytes, fields: keys.SignedFields) -> Verdict:
        from fedavg.secagg import SecAggError

        _check_body(fields, body)
        try:
            return self._hub.session_answer(k, round, attempt, memoryview(body))
        except SecAggError as error:
            self._hub.refused[f"secagg-{error.reason}"] += 1
            raise Refusal("session-refused", f"{error.reason}: {error}") from None

    async def _report(self, request: Request) -> Response:
        client, body = await self._signed(request)
        message = parse_body(ReportRequest, body)
        awaited = self._hub.fail(client.k, message.round, message.attempt)
        if not awaited and message.round > 0:
            raise Refusal("wrong-round", "no update of this client is wanted in that round")
        self._hub.reported(client.k, message.reason)
        if message.blames is not None and awaited and self._hub.complain(client.k, message.blames):
            log.warning("shut out by its peers", extra={"client": message.blames, "round": message.round})
        log.warning(
            "client reports",
            extra={"client": client.k, "round": message.round, "kind": message.kind, "reason": message.reason,
                   "detail": message.detail},
        )  # fmt: skip
        return _json(UpdateAnswer(accepted=True, duplicate=False))

    async def _health(self, _: Request) -> Response:
        stopping = self._hub.stopping
        return Response(b"stopping\n" if stopping else b"ok\n", 503 if stopping else 200, media_type="text/plain")

    async def _metrics(self, _: Request) -> Response:
        text = metrics.render(self._hub.status(), self.requests)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def _status(self, _: Request) -> Response:
        """Where the run is: numbers only, nothing about any client."""
        return JSONResponse(self._hub.status())

    # Who it is

    async def _signed(self, request: Request) -> tuple[ClientRow, bytes]:
        """The client and the body of a small signed request."""
        fields, client = self._authenticated(request)
        _pace(self._client_rate.wait(client.k))
        body = await read_body(request, MESSAGE_BYTES)
        _check_body(fields, body)
        return client, body

    def _authenticated(self, request: Request) -> tuple[keys.SignedFields, ClientRow]:
        """The client that signed the request; the body, whose digest it signed as well, is not needed for that."""
        fields, signature = self._signed_fields(request)
        client = self._hub.client(int(fields.client)) if fields.client != keys.ENROL else None
        if client is None:  # strangers are not told who is enrolled, was, or never was: all takes the same way
            self._verify(fields, signature, NOBODYS_KEY, None)
            raise Refusal("bad-signature", "nobody is enrolled under this number")
        self._verify(fields, signature, client.key, client.k)
        self._check_revoked(client.k)
        return fields, client

    def _check_revoked(self, k: int) -> None:
        client = self._hub.client(k)
        if client is None or client.revoked:
            raise Refusal("revoked", "this client's enrolment was taken back by the operator")

    def _check_signature(self, request: Request, key: bytes, counted_as: int | None, body: bytes) -> None:
        fields, signature = self._signed_fields(request)
        self._verify(fields, signature, key, counted_as)
        _check_body(fields, body)

    def _signed_fields(self, request: Request) -> tuple[keys.SignedFields, str]:
        """What is signed is the target as it was sent, before anybody has decoded it or looked at the host."""
        path, query = request.scope["raw_path"], request.scope["query_string"]
        target = (path + b"?" + query if query else path).decode("latin-1")
        try:
            return keys.parse(request.method, target, request.headers)
        except keys.SignatureRefused as error:
            raise Refusal(error.reason, str(error)) from None

    def _verify(self, fields: keys.SignedFields, signature: str, key: bytes, counted_as: int | None) -> None:
        try:
            keys.verify(fields, signature, key, self._guard, counted_as)
        except keys.SignatureRefused as error:
            told = {keys.COUNTER: str(error.highest)} if error.highest is not None else None
            raise Refusal(error.reason, str(error), told) from None

    async def blocking(self, call: Callable[..., Any], *arguments: object) -> Any:
        """A call of the database, which may take its time, in a thread."""
        try:
            return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)
        except StoreError as error:
            log.error("database", extra={"detail": str(error)})
            if not error.retryable:
                raise Refusal("storage-refused", str(error)) from None
            raise Refusal("storage", "the server can not write at the moment; come back", _later(5)) from None


def _settle(poll: "asyncio.Future[None]") -> None:
    if not poll.done():
        poll.set_result(None)


class _Once:
    """A call that is made the first time only."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call:
            call()


class Turns:
    """Turns to be in memory. Each upload takes as many bytes as it may have; two have room, however large.

    Where too many wait for one, or it does not come in time, the answer is a 503.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._taken = self._under_way = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._fast_lane = asyncio.Semaphore(FAST_LANE)

    @asynccontextmanager
    async def one(self, size: int) -> AsyncIterator[None]:
        await self._wait(size)
        making_room = _Once(self._fast_lane.release)
        timer = asyncio.get_running_loop().call_later(FAST_LANE_S, making_room)
        try:
            yield
        finally:
            timer.cancel()
            making_room()
            self._leave(size)

    async def _wait(self, size: int) -> None:
        busy = Refusal("busy", "too many uploads at a time; come back", _later(2))
        if len(self._waiting) >= WAITING:
            raise busy
        try:
            async with asyncio.timeout(TURN_S):
                await self._enter(size)
                try:
                    await self._fast_lane.acquire()
                except BaseException:
                    self._leave(size)
                    raise
        except TimeoutError:
            raise busy from None

    async def _enter(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._admit()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._leave(size)  # it came at the same moment as the end of the wait
            else:
                self._waiting.remove((size, turn))
            raise

    def _leave(self, size: int) -> None:
        self._taken -= size
        self._under_way -= 1
        self._admit()

    def _admit(self) -> None:
        """In the order in which they came: a large one is not passed by for ever."""
        while self._waiting:
            size, turn = self._waiting[0]
            if self._under_way >= 2 and self._taken + size > self._room:
                return
            self._waiting.popleft()
            self._taken += size
            self._under_way += 1
            turn.set_result(None)


class PlainPaths:
    """No path of ours needs an escape: one that has any is none of ours, whatever a proxy in front took it for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and b"%" in scope["raw_path"]:
            await problem(Refusal("no-such-path", "paths here have no escapes"))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


PLAIN_PATHS: Final = [Middleware(PlainPaths)]


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body of a request."""
    return await Body(request, limit).read()


class Body:
    """A body of at most `limit` bytes as counted, if it comes fast enough. Encodings are refused: no bombs."""

    def __init__(self, request: Request, limit: int) -> None:
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal("content-encoding", "content encodings are not taken; send the bytes as they are")
        self._stream, self._limit = request.stream(), limit
        self._chunks: list[bytes] = []
        self._length, self._seconds = 0, 0.0

    async def read(self, enough: float = inf) -> bytes:
        """Read on until so many bytes are there, or all; returns what is. Only time spent in here counts."""
        if self._length >= enough:
            return b"".join(self._chunks)
        clock = asyncio.get_running_loop().time
        began = clock() - self._seconds
        try:
            async with asyncio.timeout_at(began + self._patience_s) as patience:
                async for chunk in self._stream:
                    self._take(chunk)
                    if self._length >= enough:
                        break
                    patience.reschedule(began + self._patience_s)
        except TimeoutError:
            detail = f"{self._length} bytes came in {self._patience_s:.0f} s; expected more, or the end"
            raise Refusal("too-slow", detail) from None
        self._seconds = clock() - began
        return b"".join(self._chunks)

    def _take(self, chunk: bytes) -> None:
        self._length += len(chunk)
        if self._length > self._limit:
            raise Refusal("too-large", f"the body has more than {self._limit} bytes")
        self._chunks.append(chunk)

    @property
    def _patience_s(self) -> float:
        return BODY_S + self._length / SLOWEST_UPLOAD


def problem(refusal: Refusal, epoch: str | None = None) -> Response:
    """The answer to a request that is refused. The connection ends, since its body may be unread."""
    message = Problem(error=refusal.error, detail=printable(refusal.detail, 1000), epoch=epoch)
    headers = {**refusal.headers, "connection": "close"}
    return Response(dump(message), refusal.status, headers, media_type="application/json")


async def _http_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    name = {404: "no-such-path", 405: "wrong-method"}.get(error.status_code, "bad-request")
    return problem(Refusal(name, error.detail, dict(error.headers or {})))


#: Requests that no handler is for are refused like any others.
HTTP_PROBLEMS: Final[Mapping[Any, Any]] = {HTTPException: _http_problem}


def _json(message: object) -> Response:
    return Response(dump(message), media_type="application/json")


def _file(request: Request, name: str, data: memoryview) -> Response:
    """What never changes under its name; all of it, or the range that was asked for."""
    headers = {
        "etag": f'"{name}"',
        "cache-control": "public, max-age=31536000, immutable",
        "accept-ranges": "bytes",
        "content-type": "application/octet-stream",
    }
    if request.headers.get("if-none-match") == f'"{name}"':
        return Response(status_code=304, headers=headers)
    wanted = request.headers.get("range")
    if wanted is None or request.headers.get("if-range", f'"{name}"') != f'"{name}"':
        return _pieces(data, 200, headers)
    first, last = _byte_range(wanted, len(data))
    headers["content-range"] = f"bytes {first}-{last}/{len(data)}"
    return _pieces(data[first : last + 1], 206, headers)


def _pieces(data: memoryview, status: int, headers: dict[str, str]) -> Response:
    """A large answer, handed over as fast as it is read: a slow reader keeps one piece in memory, not all of it."""

    async def pieces() -> AsyncIterator[memoryview]:
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]

    return StreamingResponse(pieces(), status, headers | {"content-length": str(len(data))})


def parse_body(kind: type[T], body: bytes) -> T:
    try:
        return parse(kind, body, MAX_MESSAGE)
    except MessageRefused as error:
        raise Refusal(error.reason, str(error)) from None


def _check_body(fields: keys.SignedFields, body: bytes) -> None:
    try:
        keys.check_body(fields, sha256(body).hexdigest())
    except keys.SignatureRefused as error:
        raise Refusal(error.reason, str(error)) from None


def _pace(wait: float) -> None:
    if wait:
        raise Refusal("too-often", f"too many requests; come back in {wait:.1f} s", _later(wait))


def _later(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, round(seconds)))}


def _round_and_attempt(request: Request) -> tuple[int, int]:
    return _path_number(request, "round"), _path_number(request, "attempt")


def _path_number(request: Request, name: str) -> int:
    text = str(request.path_params[name])
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise Refusal("no-such-path", f"{name} is not a number of a {name}")
    return int(text)


def _byte_range(text: str, size: int) -> tuple[int, int]:
    """The first and last byte of a single range; others are refused."""
    unit, _, span = text.partition("=")
    first, dash, last = span.partition("-")
    digits = all(part.isascii() and part.isdigit() and len(part) < 16 for part in (first, last) if part)
    if unit.strip() != "bytes" or not dash or not digits or not (first or last):
        raise Refusal("bad-range", "expected 'bytes=FIRST-LAST'", {"content-range": f"bytes */{size}"})
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if start > end:
        raise Refusal("bad-range", f"expected a range within {size} bytes", {"content-range": f"bytes */{size}"})
    return start, end
