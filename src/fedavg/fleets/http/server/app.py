"""The HTTP application: what a client can ask of the server (docs/protocol.md).

Every request is hostile until its signature is checked, and stays bounded in size, time and rate after that: the gates
before each endpoint see to it (`gates.py`). A handler answers with a message, or raises a `Refusal` that becomes a 4xx
with a machine-readable reason; it never answers 500.
"""

import asyncio
import logging
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import time
from typing import Any, Final

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.messages import (
    Enrolled,
    EnrolRequest,
    Holding,
    PollAnswer,
    PollRequest,
    ReportRequest,
    Settling,
)
from fedavg.fleets.http.protocol.wire import UpdateRefused
from fedavg.fleets.http.server import metrics
from fedavg.fleets.http.server.bodies import parse_body
from fedavg.fleets.http.server.downloads import ASK_AGAIN, file_answer
from fedavg.fleets.http.server.gates import (
    Answered,
    Applying,
    Call,
    Endpoint,
    Existing,
    OfRound,
    OneUpload,
    Paced,
    PacedByAddress,
    Signed,
    SmallBody,
    UploadToken,
    Wanted,
    json_answer,
    path_number,
    receipt,
)
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.limits import Buckets
from fedavg.fleets.http.server.refusals import HTTP_PROBLEMS, PLAIN_PATHS, Refusal
from fedavg.fleets.http.server.rounds import Receipt
from fedavg.fleets.http.server.signatures import Elsewhere, Signatures
from fedavg.fleets.http.server.storage import storage_failures
from fedavg.fleets.http.server.store import EnrolRefused, Store
from fedavg.fleets.http.server.taking import OfferedRun, OfService
from fedavg.fleets.http.server.turns import UPLOAD_BYTES, Turns
from fedavg.plan import Plan

log = logging.getLogger("fedavg.fleet")

#: Held polls that are answered at a time when a round begins, and the seconds between (more if the loop is busy): all
#: of a cohort at once would keep everyone else waiting, and come back with their updates at once.
WAKE: Final = 20
WAKE_S: Final = 0.005
#: The status of an update frame that is refused; its reason is a `wire.UpdateFault`.
UPDATE_REFUSED: Final = 422


class FleetApp:
    """The client-facing side of a server; `asgi` is the application."""

    def __init__(
        self,
        plan: Plan | None,
        hub: Hub,
        store: Store,
        elsewhere: Elsewhere | None = None,
        requests: metrics.Requests | None = None,
        service: OfService | None = None,
    ) -> None:
        """The plan is None while a service has no run. `elsewhere` is what other replicas know, if there are any;
        `requests` is where answers are counted."""
        self._plan, self._hub, self._store, self._elsewhere = plan, hub, store, elsewhere
        self._service = service or OfService()
        self._rounds = self._service.rounds or store
        self._offered = OfferedRun(self._service.number, plan.to_toml(), plan.digest, str(plan.task)) if plan else None
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}
        self._signatures = Signatures(hub.presence, elsewhere)
        #: Decoding and adding are C code without the interpreter's lock: two threads keep both halves of it busy.
        self._workers = self._service.workers or ThreadPoolExecutor(2, thread_name_prefix="update")
        self.requests = requests or metrics.Requests()
        #: What every request passes first.
        self.answered = Answered(self.requests, lambda: self.epoch)
        self.asgi = Starlette(
            routes=[endpoint.route(self.answered) for endpoint in self._endpoints()],
            middleware=PLAIN_PATHS,
            exception_handlers=HTTP_PROBLEMS,
        )
        self.asgi.router.redirect_slashes = False  # a path is right or it is not

    def _endpoints(self) -> list[Endpoint]:
        """All that clients can ask, and the gates before each, in the order in which a request passes them."""
        hub, small = self._hub, SmallBody()
        paced = Paced(Buckets(rate=20, burst=60))
        by_address = PacedByAddress(Buckets(rate=50, burst=500))
        signed = [Signed(self._signatures), paced]
        invited = [UploadToken(hub.intake.token_source), paced]
        upload = OneUpload(Turns(UPLOAD_BYTES), hub.intake.frame_limit, self._workers)
        secagg = self._plan is not None and self._plan.secagg != "none"
        masked = Existing(secagg, "this run has no secure aggregation, and so no sessions")
        applying = Applying(self._signatures, None if self._service.many or not self._plan else str(self._plan.task))
        update, message = Wanted(hub.intake.judge), Wanted(hub.sessions.judge)
        of_round, rounds = OfRound(), "/v1/rounds/{round}/{attempt}"
        return [
            Endpoint("POST", "/v1/enrol", self._enrol, [by_address, small, applying]),
            Endpoint("POST", "/v1/poll", self._poll, [*signed, small]),
            Endpoint("GET", "/v1/models/latest", self._latest_model, signed),
            Endpoint("GET", "/v1/models/{digest}", self._model),
            Endpoint("GET", "/v1/models/{digest}/changes/{count}", self._changes),
            Endpoint("PUT", f"{rounds}/update", self._update, [*signed, of_round, update, upload]),
            Endpoint("PUT", f"{rounds}/anonymous", self._update, [*invited, of_round, update, upload]),
            Endpoint("GET", f"{rounds}/session", self._session_message, [masked, *signed, small, of_round]),
            Endpoint("PUT", f"{rounds}/session", self._session_answer, [masked, *signed, of_round, message, upload]),
            Endpoint("POST", "/v1/report", self._report, [*signed, small]),
            Endpoint("GET", "/healthz", self._health),
            Endpoint("GET", "/metrics", self._metrics),
            Endpoint("GET", "/v1/status", self._status),
        ]

    @property
    def epoch(self) -> str:
        return self._signatures.epoch

    def run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on the hub can wake polls that are held in this loop."""

        def wake(clients: Iterable[int]) -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(self._wake, loop, deque(clients))

        self._hub.shared.wake = wake

    @property
    def hub(self) -> Hub:
        return self._hub

    def close(self) -> None:
        if self._service.workers is None:
            self._workers.shutdown()

    def _wake(self, loop: asyncio.AbstractEventLoop, clients: deque[int]) -> None:
        woken = 0
        while clients and woken < WAKE:
            for poll in self._waiting.get(clients.popleft(), ()):
                _settle(poll)
                woken += 1
        if clients:
            loop.call_later(WAKE_S, self._wake, loop, clients)

    # Handlers

    async def _enrol(self, call: Call) -> Response:
        message = parse_body(EnrolRequest, call.body)
        many = self._service.many  # numbers are a service's own, whatever K the plan of the run under way has
        try:
            row = await self.blocking(
                partial(
                    self._store.enrol, keys.token_hash(message.token), b64decode(message.key), message.examples,
                    message.name, message.client, None if many or not self._plan else self._plan.clients, now=time(),
                    address=call.address, approved=not self._hub.guards.approval,
                    tasks=tuple(message.tasks) if many else None,
                )
            )  # fmt: skip
        except EnrolRefused as error:
            raise Refusal(error.reason, str(error)) from None
        self._hub.know([row])
        log.info("client enrolled", extra={"client": row.k, "examples": row.examples, "approved": row.approved})
        plan = self._offered.answer if self._offered and self._offered.is_for(row) else None
        run, text, digest = (plan.run, plan.plan, plan.plan_digest) if plan else (None, None, None)
        return json_answer(Enrolled(client=row.k, epoch=self.epoch, run=run, plan=text, plan_digest=digest))

    async def _poll(self, call: Call) -> Response:
        message = parse_body(PollRequest, call.body)
        if self._offered is None or message.run != self._offered.name:
            return json_answer(await self._not_taken(call.k, message))
        eligible = message.eligible
        ready = eligible.charging and eligible.unmetered and eligible.idle
        if ready:
            await self._recount(call.k, message.examples)
        self._hub.presence.see(call.k, ready)
        answer = self._hub.polls.answer(call.k)
        held = False
        may_wait = message.wait_s > 0 and not self._hub.shared.stopping
        if answer is None and may_wait and self._hub.presence.hold(call.k):
            held = True
            try:
                await self._woken(call.k, message.wait_s)
            finally:
                self._hub.presence.release(call.k)
            await self._catch_up()
            self._signatures.check_revoked(call.k)
            answer = self._hub.polls.answer(call.k)
        answer = answer or self._hub.polls.wait_answer(held)
        if message.holding is not None and isinstance(answer, Settling):
            answer = replace(answer, counted=await self._counted(call.k, message.holding))
        return json_answer(answer)

    async def _not_taken(self, k: int, message: PollRequest) -> PollAnswer:
        """A client that has not taken up the run which is offered is told of it, if it is one for this client."""
        row = self._hub.presence.client(k)
        if self._offered and row and self._offered.is_for(row) and not self._hub.polls.finished:
            return self._offered.answer
        held = message.wait_s > 0 and not self._hub.shared.stopping and self._hub.presence.hold(k)
        if held:
            try:
                await self._woken(k, message.wait_s)
            finally:
                self._hub.presence.release(k)
            self._signatures.check_revoked(k)
        return replace(self._hub.polls.wait_answer(held), committed=0)

    async def _recount(self, k: int, examples: int) -> None:
        """A client may have more or fewer examples than before; its update may come to another process."""
        known = self._hub.presence.client(k)
        if known is not None and known.examples != examples:
            await self.blocking(self._store.count_examples, k, examples)
            self._hub.know([replace(known, examples=examples)])

    async def _catch_up(self) -> None:
        """Other replicas may be ahead of this one."""
        if self._elsewhere is not None:
            await self._elsewhere.catch_up()

    async def _counted(self, k: int, held: Holding) -> bool | None:
        """Is the update that a client holds part of its round? None while that is open; without names nobody knows."""
        if held.round > self._hub.history.last or self._hub.guards.anonymous:
            return None
        counted = self._hub.history.counted_in(held.round)
        if counted is None:
            counted = await self.blocking(self._rounds.counted, held.round)
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

    async def _model(self, call: Call) -> Response:
        """Content-addressed, so it never changes and anyone may keep it; ranges let a cut download go on."""
        digest = call.request.path_params["digest"]
        if self._hub.models.content(digest) is None:
            await self._catch_up()
        data = self._hub.models.content(digest)
        if data is None:
            raise Refusal("no-such-model", "this model is not on offer (any more); poll for work")
        return file_answer(call.request, digest, memoryview(data))

    async def _latest_model(self, call: Call) -> Response:
        """The model that clients may take away. Its address is for them alone: others do not know its digest."""
        client = self._hub.presence.client(call.k)
        if client is None or not client.approved:
            raise Refusal("no-such-model", "this client waits for the operator's approval")
        await self._catch_up()
        released = self._hub.models.released
        if released is None:
            raise Refusal("no-such-model", "no model is published yet: it comes with the last round")
        answer = file_answer(call.request, released.digest, memoryview(released.content), ASK_AGAIN)
        answer.headers["fedavg-round"] = str(released.round)
        return answer

    async def _changes(self, call: Call) -> Response:
        """The last changes that lead to a model, each after its length: for who has had an earlier one."""
        digest, count = call.request.path_params["digest"], path_number(call.request, "count")
        if self._hub.models.content(digest) is None:
            await self._catch_up()
        data = self._hub.models.changes(digest, count)
        if data is None:
            raise Refusal("no-such-model", "so many changes of this model are not on offer; fetch the whole model")
        return file_answer(call.request, f"{digest}-{count}", data)

    async def _update(self, call: Call) -> Response:
        """Add an update to the sum: a client's, or that of somebody who was invited."""
        try:
            return receipt(await self._in_thread(self._hub.intake.add, call))
        except UpdateRefused as error:
            self._hub.intake.refuse(call.source, call.round, call.attempt, str(error.reason))
            raise Refusal(error.reason, str(error), status=UPDATE_REFUSED) from None

    async def _session_message(self, call: Call) -> Response:
        """The message of a session of secure aggregation that waits for this client."""
        message = self._hub.sessions.message(call.k, call.round, call.attempt)
        if message is None:
            raise Refusal("no-such-message", "no message of a session waits for this client; poll for work")
        return Response(message, media_type="application/octet-stream")

    async def _session_answer(self, call: Call) -> Response:
        from fedavg.secagg import SecAggError

        try:
            return receipt(await self._in_thread(self._hub.sessions.receive, call))
        except SecAggError as error:
            self._hub.updates.refused[f"secagg-{error.reason}"] += 1
            raise Refusal("session-refused", f"{error.reason}: {error}") from None

    async def _in_thread(self, take: Callable[[Any, int, int, memoryview], Receipt], call: Call) -> Receipt:
        """Have a large body looked at beside the event loop."""
        arguments = (call.source, call.round, call.attempt, memoryview(call.body))
        with storage_failures():
            return await asyncio.get_running_loop().run_in_executor(self._workers, take, *arguments)

    async def _report(self, call: Call) -> Response:
        message = parse_body(ReportRequest, call.body)
        fail = self._hub.collecting.fail
        # Before it counts as failed: else a session that ends by it would send the one who complains to rest.
        blamed = message.blames is not None and self._hub.sessions.complain(
            call.k, message.blames, message.round, message.attempt
        )
        awaited = await self.blocking(fail, call.k, message.round, message.attempt, message.reason)
        if not awaited and message.round > 0:
            raise Refusal("wrong-round", "no update of this client is wanted in that round")
        self._hub.reported(call.k, message.reason)
        if blamed:
            log.warning("shut out by its peers", extra={"client": message.blames, "round": message.round})
        log.warning(
            "client reports",
            extra={"client": call.k, "round": message.round, "kind": message.kind, "reason": message.reason,
                   "detail": message.detail},
        )  # fmt: skip
        return receipt(Receipt.ACCEPTED)

    async def _health(self, _: Call) -> Response:
        stopping = self._hub.shared.stopping
        return Response(b"stopping\n" if stopping else b"ok\n", 503 if stopping else 200, media_type="text/plain")

    async def _metrics(self, _: Call) -> Response:
        text = metrics.render(self._hub.status(), self.requests)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def _status(self, _: Call) -> Response:
        """Where the run is: numbers only, nothing about any client."""
        return JSONResponse(self.status())

    def status(self, operator: bool = False) -> dict[str, Any]:
        """Where the run is; of replicas, as all of them together have it."""
        own = self._hub.status()
        own |= {"requests_refused": dict(self.requests.by_reason)} if operator else {}
        return own if self._elsewhere is None else self._elsewhere.overview(own, operator)

    async def blocking(self, call: Callable[..., Any], *arguments: object) -> Any:
        """A call of the database, which may take its time, in a thread."""
        with storage_failures():
            return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)


def _settle(poll: "asyncio.Future[None]") -> None:
    if not poll.done():
        poll.set_result(None)
