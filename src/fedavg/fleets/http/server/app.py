"""The HTTP application: the requests that a client can make (docs/protocol.md).

Every request counts as hostile until its signature is checked, and stays bounded in size, time and rate after that: the
gates before each endpoint enforce this (`gates.py`). A handler answers with a message, or raises a `Refusal` that
becomes a 4xx with a machine-readable reason; it never answers 500.
"""

import asyncio
import logging
from base64 import b64decode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from time import time
from typing import Any, Final

from starlette.applications import Starlette
from starlette.responses import Response

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.messages import (
    Enrolled,
    EnrolRequest,
    Holding,
    PlanAnswer,
    PollAnswer,
    PollRequest,
    ReportRequest,
    Settling,
    WaitAnswer,
)
from fedavg.fleets.http.protocol.wire import UpdateFault, UpdateRefused
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
from fedavg.fleets.http.server.metrics import Requests
from fedavg.fleets.http.server.refusals import HTTP_PROBLEMS, PLAIN_PATHS, Refusal
from fedavg.fleets.http.server.rounds import Receipt
from fedavg.fleets.http.server.signatures import Elsewhere, Signatures
from fedavg.fleets.http.server.storage import storage_failures
from fedavg.fleets.http.server.store import ClientRow, EnrolRefused, Store
from fedavg.fleets.http.server.store.sightings import SightingRows
from fedavg.fleets.http.server.taking import OfferedRun, OfService
from fedavg.fleets.http.server.turns import UPLOAD_BYTES, Turns
from fedavg.fleets.http.server.waiting import HeldPolls
from fedavg.fleets.http.server.watching import Watching
from fedavg.plan import Plan

log = logging.getLogger("fedavg.fleet")

#: The status for a refused update frame; the reason is a `wire.UpdateFault`.
UPDATE_REFUSED: Final = 422
#: The answer to a client that belongs to another run than it was taken for: its next poll goes there.
ASK_AT_ONCE: Final = WaitAnswer(retry_after_s=0.0, committed=0, counted=None)


class FleetApp:
    """The client-facing side of a server; `asgi` is the application."""

    def __init__(
        self,
        plan: Plan | None,
        hub: Hub,
        store: Store,
        elsewhere: Elsewhere | None = None,
        requests: Requests | None = None,
        service: OfService | None = None,
    ) -> None:
        """The plan is None while a service has no run. `elsewhere` is what other replicas know, if there are others;
        `requests` is where answers are counted."""
        self._plan, self._hub, self._store, self._elsewhere = plan, hub, store, elsewhere
        self._service = service or OfService()
        self._rounds = self._service.rounds or store
        self._offered = OfferedRun(self._service.number, plan.to_toml(), plan.digest, str(plan.task)) if plan else None
        #: The number of the run on offer, if there is one.
        self.run = self._offered.number if self._offered else None
        self._held = HeldPolls()
        #: Clients that have taken up the run.
        self.took: set[int] = set()
        hub.sightings.rows = SightingRows(store.connections)
        self._signatures = Signatures(hub.presence, elsewhere, self._service.guard)
        #: Decoding and adding are C code that releases the GIL: two threads let one decode while the other adds.
        self._workers = self._service.workers or ThreadPoolExecutor(2, thread_name_prefix="update")
        self.requests = requests or Requests()
        self._turns = Turns(UPLOAD_BYTES)
        runs = self._service.runs
        self.watching = Watching(hub, self.requests, self._turns, elsewhere, runs)
        #: The first gate of every request.
        self.answered = Answered(self.requests, lambda: self.epoch)
        self.asgi = Starlette(
            routes=[endpoint.route(self.answered) for endpoint in self._endpoints()],
            middleware=PLAIN_PATHS,
            exception_handlers=HTTP_PROBLEMS,
        )
        self.asgi.router.redirect_slashes = False  # a path matches exactly or is refused

    def _endpoints(self) -> list[Endpoint]:
        """Every client endpoint with its gates, in the order in which a request passes them."""
        hub, small = self._hub, SmallBody()
        paced = Paced(Buckets(rate=20, burst=60))
        by_address = PacedByAddress(Buckets(rate=50, burst=500))
        signed = [Signed(self._signatures), paced]
        invited = [UploadToken(hub.intake.token_source), paced]
        upload = OneUpload(self._turns, hub.intake.frame_limit, self._workers)
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
            *self.watching.endpoints,
        ]

    @property
    def epoch(self) -> str:
        return self._signatures.epoch

    def run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the hub wake polls that are held in this loop."""
        self._hub.shared.wake = self._held.waker(loop)

    @property
    def hub(self) -> Hub:
        return self._hub

    @property
    def plan_answer(self) -> PlanAnswer | None:
        return self._offered.answer if self._offered else None

    def know(self, rows: Sequence[ClientRow]) -> None:
        """Take over client rows from the database; in a service, all runs are informed."""
        (self._service.tell or self._hub.know)(rows)

    def close(self) -> None:
        self._hub.sightings.keep()
        if self._service.workers is None:
            self._workers.shutdown()

    # Handlers

    async def _enrol(self, call: Call) -> Response:
        message = parse_body(EnrolRequest, call.body)
        many = self._service.many  # a service numbers its clients itself, independent of the plan's K
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
        self.know([row])
        log.info(
            "client enrolled",
            extra={"client": row.k, "examples": row.examples, "approved": row.approved, "address": call.address},
        )
        plan = self._offered.answer if self._offered and self._offered.is_for(row) else None
        run, text, digest = (plan.run, plan.plan, plan.plan_digest) if plan else (None, None, None)
        return json_answer(Enrolled(client=row.k, epoch=self.epoch, run=run, plan=text, plan_digest=digest))

    async def _poll(self, call: Call) -> Response:
        message = parse_body(PollRequest, call.body)
        self._see(call)
        if self._service.moved_on(call.k, message.run.run if message.run else None):
            return json_answer(ASK_AT_ONCE)
        if self._offered is None or message.run != self._offered.name:
            return json_answer(await self._not_taken(call.k, message))
        self.took.add(call.k)
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
                await self._held.woken(call.k, message.wait_s)
            finally:
                self._hub.presence.release(call.k)
            await self._catch_up()
            self._signatures.check_revoked(call.k)
            answer = self._hub.polls.answer(call.k) or self._service.another_plan(call.k, self._service.number)
        answer = answer or self._hub.polls.wait_answer(held)
        if message.holding is not None and isinstance(answer, Settling):
            answer = replace(answer, counted=await self._counted(call.k, message.holding))
        return json_answer(answer)

    def _see(self, call: Call) -> None:
        """Note that a client is there. Notes are written to the database now and then, in the background."""
        sightings = self._hub.sightings
        sightings.see(call.k, call.request.headers.get("user-agent", ""))
        if sightings.due:
            asyncio.get_running_loop().run_in_executor(None, sightings.keep)

    async def _not_taken(self, k: int, message: PollRequest) -> PollAnswer:
        """The answer to a client that has not taken up the run on offer: its plan, if the client may take part."""
        if message.run is not None and await self.blocking(self._service.missed, k, message.run):
            return ASK_AT_ONCE
        row = self._hub.presence.client(k)
        over = self._hub.polls.finished and (k not in self.took or k in self._hub.polls.told())
        if self._offered and row and self._offered.is_for(row) and not over:
            return self._offered.answer
        held = message.wait_s > 0 and not self._hub.shared.stopping and self._hub.presence.hold(k)
        if held:
            try:
                await self._held.woken(k, message.wait_s)
            finally:
                self._hub.presence.release(k)
            self._signatures.check_revoked(k)
            if (plan := self._service.another_plan(k, 0)) is not None:
                return plan
        return replace(self._hub.polls.wait_answer(held), committed=0)

    async def _recount(self, k: int, examples: int) -> None:
        """Store a client's new number of examples: its update may reach another process."""
        known = self._hub.presence.client(k)
        if known is not None and known.examples != examples:
            await self.blocking(self._store.count_examples, k, examples)
            self._hub.know([replace(known, examples=examples)])

    async def _catch_up(self) -> None:
        """Learn what other replicas did: they may be ahead of this one."""
        if self._elsewhere is not None:
            await self._elsewhere.catch_up()

    async def hear_of_all(self) -> None:
        """Ask other replicas which clients are there, for an operator."""
        if self._elsewhere is not None:
            await self._elsewhere.hear_of_all()

    async def _counted(self, k: int, held: Holding) -> bool | None:
        """Is the update that a client holds part of its round? None if the round is open or updates are anonymous."""
        if held.round > self._hub.history.last or self._hub.guards.anonymous:
            return None
        counted = self._hub.history.counted_in(held.round)
        if counted is None:
            counted = await self.blocking(self._rounds.counted, held.round)
            self._hub.history.remember(held.round, counted)
        return held.attempt == counted.attempt and k in counted.clients

    async def _model(self, call: Call) -> Response:
        """Content-addressed, so it never changes and anyone may cache it; ranges let a broken download resume."""
        digest = call.request.path_params["digest"]
        if self._hub.models.content(digest) is None:
            await self._catch_up()
        data = self._hub.models.content(digest) or await self.blocking(self._service.final_model, digest)
        if data is None:
            raise Refusal("no-such-model", "this model is not on offer (any more); poll for work")
        return file_answer(call.request, digest, memoryview(data))

    async def _latest_model(self, call: Call) -> Response:
        """The model that clients may take away. Only they can fetch it: others do not know its digest."""
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
        """The last changes that lead to a model, each preceded by its length: for clients with an earlier model."""
        digest, count = call.request.path_params["digest"], path_number(call.request, "count")
        if self._hub.models.content(digest) is None:
            await self._catch_up()
        data = self._hub.models.changes(digest, count)
        if data is None:
            raise Refusal("no-such-model", "this many changes of this model are not on offer; fetch the whole model")
        return file_answer(call.request, f"{digest}-{count}", data)

    async def _update(self, call: Call) -> Response:
        """Add an update to the sum: a named client's, or an anonymous one sent with an upload token."""
        try:
            return receipt(await self._in_thread(self._hub.intake.add, call))
        except UpdateRefused as error:
            if self._service.many and error.reason is UpdateFault.WRONG_PLAN:  # of a run that was replaced meanwhile
                raise Refusal("wrong-round", f"{error}; poll for work") from None
            self._hub.intake.refuse(call.source, call.round, call.attempt, str(error.reason))
            raise Refusal(error.reason, str(error), status=UPDATE_REFUSED) from None

    async def _session_message(self, call: Call) -> Response:
        """The secure-aggregation message that waits for this client."""
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
        """Process a large body outside the event loop."""
        arguments = (call.source, call.round, call.attempt, memoryview(call.body))
        with storage_failures():
            return await asyncio.get_running_loop().run_in_executor(self._workers, take, *arguments)

    async def _report(self, call: Call) -> Response:
        message = parse_body(ReportRequest, call.body)
        fail = self._hub.collecting.fail
        # Before it counts as failed: if this ends the session, the client that complains must not be put to rest.
        blamed = message.blames is not None and self._hub.sessions.complain(
            call.k, message.blames, message.round, message.attempt
        )
        awaited = await self.blocking(fail, call.k, message.round, message.attempt, message.reason)
        if not awaited and message.round > 0:
            raise Refusal("wrong-round", "this client is not asked for an update in that round")
        self._hub.reported(call.k, message.reason)
        if blamed:
            log.warning("shut out by its peers", extra={"client": message.blames, "round": message.round})
        log.warning(
            "client reports",
            extra={"client": call.k, "round": message.round, "kind": message.kind, "reason": message.reason,
                   "detail": message.detail},
        )  # fmt: skip
        return receipt(Receipt.ACCEPTED)

    def status(self, operator: bool = False) -> dict[str, Any]:
        """The state of the run; with replicas, of all of them together."""
        return self.watching.status(operator)

    def ledger(self) -> list[dict[str, object]]:
        """The privacy cost of each committed round of the run."""
        return self._rounds.ledger()

    async def blocking(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Make a database call, which may be slow, in a thread."""
        with storage_failures():
            return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)
