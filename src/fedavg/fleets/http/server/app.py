"""The HTTP application: what a client can ask of the server (docs/protocol.md).

Every request is hostile until its signature is checked, and stays bounded in size, time and rate after that. A handler
answers with a message, or raises a `Refusal` that becomes a 4xx with a machine-readable reason; it never answers 500.
"""

import asyncio
import logging
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from time import time
from typing import Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.messages import (
    PROTOCOL,
    Enrolled,
    EnrolRequest,
    Holding,
    PollRequest,
    ReportRequest,
    Settling,
    UpdateAnswer,
)
from fedavg.fleets.http.protocol.strict import dump
from fedavg.fleets.http.protocol.wire import UpdateRefused
from fedavg.fleets.http.server import metrics
from fedavg.fleets.http.server.bodies import MESSAGE_BYTES, Body, check_body, parse_body, read_body
from fedavg.fleets.http.server.downloads import file_answer
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.limits import Buckets
from fedavg.fleets.http.server.refusals import HTTP_PROBLEMS, PLAIN_PATHS, Refusal, later, pace, problem
from fedavg.fleets.http.server.rounds import Receipt
from fedavg.fleets.http.server.signatures import Signatures
from fedavg.fleets.http.server.store import EnrolRefused, Store, StoreError
from fedavg.fleets.http.server.turns import BEGINNING, UPLOAD_BYTES, Turns
from fedavg.plan import Plan

log = logging.getLogger("fedavg.fleet")

#: Held polls that are answered at a time when a round begins, and the seconds between (more if the loop is busy): all
#: of a cohort at once would keep everyone else waiting, and come back with their updates at once.
WAKE: Final = 20
WAKE_S: Final = 0.005
#: The status of an update frame that is refused; its reason is a `wire.UpdateFault`.
UPDATE_REFUSED: Final = 422

Handler = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")


class FleetApp:
    """The client-facing side of a server; `asgi` is the application."""

    def __init__(self, plan: Plan, hub: Hub, store: Store) -> None:
        self._plan, self._hub, self._store = plan, hub, store
        self._plan_toml = plan.to_toml()
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}
        self._client_rate = Buckets(rate=20, burst=60)
        self._signatures = Signatures(hub.presence, self._client_rate)
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
        return self._signatures.epoch

    def run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on the hub can wake polls that are held in this loop."""

        def wake(clients: Iterable[int]) -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(self._wake, loop, deque(clients))

        self._hub.shared.wake = wake

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
        pace(self._address_rate.wait(address))
        body = await read_body(request, MESSAGE_BYTES)
        message = parse_body(EnrolRequest, body)
        if message.protocol != PROTOCOL:
            raise Refusal("wrong-protocol", f"got version {message.protocol}; this server speaks {PROTOCOL}")
        if message.task != self._plan.task:
            raise Refusal("wrong-task", f"got '{message.task}'; this run trains '{self._plan.task}'")
        key = b64decode(message.key)
        self._signatures.check_signature(request, key, None, body)
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
        client, body = await self._signatures.signed(request)
        message = parse_body(PollRequest, body)
        eligible = message.eligible
        self._hub.presence.see(client.k, eligible.charging and eligible.unmetered and eligible.idle)
        answer = self._hub.polls.answer(client.k)
        held = False
        may_wait = message.wait_s > 0 and not self._hub.shared.stopping
        if answer is None and may_wait and self._hub.presence.hold(client.k):
            held = True
            try:
                await self._woken(client.k, message.wait_s)
            finally:
                self._hub.presence.release(client.k)
            self._signatures.check_revoked(client.k)
            answer = self._hub.polls.answer(client.k)
        answer = answer or self._hub.polls.wait_answer(held)
        if message.holding is not None and isinstance(answer, Settling):
            answer = replace(answer, counted=await self._counted(client.k, message.holding))
        return _json(answer)

    async def _counted(self, k: int, held: Holding) -> bool | None:
        """Is the update that a client holds part of its round? None while that is open; without names nobody knows."""
        if held.round > self._hub.history.last or self._hub.guards.anonymous:
            return None
        counted = self._hub.history.counted_in(held.round)
        if counted is None:
            counted = await self.blocking(self._store.counted, held.round)
            self._hub.history.remember(held.round, counted)
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
        data = self._hub.models.content(digest)
        if data is None:
            raise Refusal("no-such-model", "this model is not on offer (any more); poll for work")
        return file_answer(request, digest, memoryview(data))

    async def _changes(self, request: Request) -> Response:
        """The last changes that lead to a model, each after its length: for who has had an earlier one."""
        digest, count = request.path_params["digest"], _path_number(request, "count")
        data = self._hub.models.changes(digest, count)
        if data is None:
            raise Refusal("no-such-model", "so many changes of this model are not on offer; fetch the whole model")
        return file_answer(request, f"{digest}-{count}", data)

    async def _update(self, request: Request) -> Response:
        fields, client = self._signatures.authenticated(request)
        pace(self._client_rate.wait(client.k))
        return await self._take(request, client.k, fields)

    async def _anonymous(self, request: Request) -> Response:
        """The update of somebody who was invited; who it is is not known here, and need not be."""
        token = request.headers.get("fedavg-upload-token", "")
        source = self._hub.intake.token_source(token)
        if source is None:
            raise Refusal("upload-token-unknown", "the upload token is not one of this round")
        pace(self._client_rate.wait(source))
        return await self._take(request, source, None)

    async def _take(self, request: Request, source: int | bytes, fields: keys.SignedFields | None) -> Response:
        round, attempt = _round_and_attempt(request)
        verdict = self._hub.intake.judge(source, round, attempt)
        if verdict is Receipt.ACCEPTED:
            verdict = await self._receive(request, source, fields, round, attempt)
        if verdict not in (Receipt.ACCEPTED, Receipt.DUPLICATE):
            raise Refusal(verdict, "this update is not wanted now; poll for work")
        answer = _json(UpdateAnswer(accepted=True, duplicate=verdict is Receipt.DUPLICATE))
        if request.scope["scheme"] == "https":  # of TLS, what an upload filled stays in memory with its connection
            answer.headers["connection"] = "close"
        return answer

    async def _receive(
        self, request: Request, source: int | bytes, fields: keys.SignedFields | None, round: int, attempt: int
    ) -> Receipt:
        """Read an update, one at a time from each source and only as many as fit in memory, and add it."""
        try:
            async with self._upload(request, source, self._hub.intake.frame_limit()) as frame:
                return await asyncio.get_running_loop().run_in_executor(
                    self._workers, self._check_and_add, source, round, attempt, frame, fields
                )
        except UpdateRefused as error:
            self._hub.intake.refuse(source, round, attempt, str(error.reason))
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
    ) -> Receipt:
        if fields is not None:
            check_body(fields, frame)
        return self._hub.intake.add(source, round, attempt, memoryview(frame))

    async def _session_message(self, request: Request) -> Response:
        """The message of a session of secure aggregation that waits for this client."""
        self._check_masked()
        client, _ = await self._signatures.signed(request)
        message = self._hub.sessions.message(client.k, *_round_and_attempt(request))
        if message is None:
            raise Refusal("no-such-message", "no message of a session waits for this client; poll for work")
        return Response(message, media_type="application/octet-stream")

    async def _session_answer(self, request: Request) -> Response:
        self._check_masked()
        fields, client = self._signatures.authenticated(request)
        pace(self._client_rate.wait(client.k))
        round, attempt = _round_and_attempt(request)
        verdict = self._hub.sessions.judge(client.k, round, attempt)
        if verdict is Receipt.ACCEPTED:
            async with self._upload(request, client.k, self._hub.intake.frame_limit()) as body:
                verdict = await asyncio.get_running_loop().run_in_executor(
                    self._workers, self._check_and_carry, client.k, round, attempt, body, fields
                )
        if verdict is not Receipt.ACCEPTED:
            raise Refusal(verdict, "this message is not wanted now; poll for work")
        return _json(UpdateAnswer(accepted=True, duplicate=False))

    def _check_masked(self) -> None:
        if self._plan.secagg == "none":
            raise Refusal("no-such-path", "this run has no secure aggregation, and so no sessions")

    def _check_and_carry(self, k: int, round: int, attempt: int, body: bytes, fields: keys.SignedFields) -> Receipt:
        from fedavg.secagg import SecAggError

        check_body(fields, body)
        try:
            return self._hub.sessions.receive(k, round, attempt, memoryview(body))
        except SecAggError as error:
            self._hub.updates.refused[f"secagg-{error.reason}"] += 1
            raise Refusal("session-refused", f"{error.reason}: {error}") from None

    async def _report(self, request: Request) -> Response:
        client, body = await self._signatures.signed(request)
        message = parse_body(ReportRequest, body)
        awaited = self._hub.collecting.fail(client.k, message.round, message.attempt)
        if not awaited and message.round > 0:
            raise Refusal("wrong-round", "no update of this client is wanted in that round")
        self._hub.reported(client.k, message.reason)
        if message.blames is not None and awaited and self._hub.sessions.complain(client.k, message.blames):
            log.warning("shut out by its peers", extra={"client": message.blames, "round": message.round})
        log.warning(
            "client reports",
            extra={"client": client.k, "round": message.round, "kind": message.kind, "reason": message.reason,
                   "detail": message.detail},
        )  # fmt: skip
        return _json(UpdateAnswer(accepted=True, duplicate=False))

    async def _health(self, _: Request) -> Response:
        stopping = self._hub.shared.stopping
        return Response(b"stopping\n" if stopping else b"ok\n", 503 if stopping else 200, media_type="text/plain")

    async def _metrics(self, _: Request) -> Response:
        text = metrics.render(self._hub.status(), self.requests)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def _status(self, _: Request) -> Response:
        """Where the run is: numbers only, nothing about any client."""
        return JSONResponse(self._hub.status())

    async def blocking(self, call: Callable[..., Any], *arguments: object) -> Any:
        """A call of the database, which may take its time, in a thread."""
        try:
            return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)
        except StoreError as error:
            log.error("database", extra={"detail": str(error)})
            if not error.retryable:
                raise Refusal("storage-refused", str(error)) from None
            raise Refusal("storage", "the server can not write at the moment; come back", later(5)) from None


def _settle(poll: "asyncio.Future[None]") -> None:
    if not poll.done():
        poll.set_result(None)


def _json(message: object) -> Response:
    return Response(dump(message), media_type="application/json")


def _round_and_attempt(request: Request) -> tuple[int, int]:
    return _path_number(request, "round"), _path_number(request, "attempt")


def _path_number(request: Request, name: str) -> int:
    text = str(request.path_params[name])
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise Refusal("no-such-path", f"{name} is not a number of a {name}")
    return int(text)
