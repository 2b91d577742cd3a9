"""What the runs of a service share in one process: the clients, the request counters, the floor.

If a client took up a run and was not told that it is over, the run is offered again when that client polls: the server
may have been restarted meanwhile, or the client may have talked to another process.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Lock
from time import monotonic
from typing import Final

from starlette.types import Receive, Scope, Send

from fedavg.engine.model import model_sha256
from fedavg.fleets.http.protocol.keys import ReplayGuard
from fedavg.fleets.http.protocol.messages import DoneAnswer, PlanAnswer, Taken
from fedavg.fleets.http.server.app import FleetApp
from fedavg.fleets.http.server.claims import Claims
from fedavg.fleets.http.server.conduct import FIRST_REST
from fedavg.fleets.http.server.floor import Floor, Stand
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.metrics import Requests
from fedavg.fleets.http.server.refusals import Refusal
from fedavg.fleets.http.server.rounds import Rules
from fedavg.fleets.http.server.sightings import Sightings
from fedavg.fleets.http.server.signatures import Elsewhere
from fedavg.fleets.http.server.store import ClientRow, Runs, Store, SubmittedRun, allows
from fedavg.fleets.http.server.taking import OfService
from fedavg.plan import Plan
from fedavg.programs.hosting import Hosting
from fedavg.programs.serve import parked

#: Requests of clients, whose answers depend on which run is served.
OF_CLIENTS: Final = ("/v1/enrol", "/v1/poll", "/v1/models/", "/v1/rounds/", "/v1/report")


class Premises:
    """`elsewhere` returns what other replicas of the service know, given the hub of the clients without a run."""

    def __init__(
        self, store: Store, hosting: Hosting, elsewhere: Callable[[Hub, Requests], Elsewhere] | None = None
    ) -> None:
        self.store, self.hosting, self.runs = store, hosting, Runs(store.connections)
        self.requests = Requests()
        self._sightings, self._guard = Sightings(), ReplayGuard()
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="update")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reopening = Lock()
        front = self.hub(hosting.options.rules)
        self._elsewhere = elsewhere(front, self.requests) if elsewhere else None
        self.floor = Floor(lambda floor: FleetApp(None, front, store, self._elsewhere, self.requests, self._shared(0)))

    def close(self) -> None:
        self.floor.front.close()
        self.floor.close()
        self._workers.shutdown()

    async def dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route each client's request to its run; with replicas, once this one knows which runs are served."""
        if self._elsewhere is not None and scope["type"] == "http" and scope["path"].startswith(OF_CLIENTS):
            with suppress(Refusal):  # the database is away: what needs it says so itself
                await self._elsewhere.catch_up()
        app = self.floor.app_for(scope) if scope["type"] == "http" else self.floor.front
        await app.asgi(scope, receive, send)

    def run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.floor.front.run_in(loop)

    def hub(self, rules: Rules, claims: Claims | None = None) -> Hub:
        hub = Hub(self.hosting.options.guards, FIRST_REST * rules.deadline_s, claims, self._sightings)
        hub.know(self.store.clients())
        return hub

    def app(self, number: int, plan: Plan, hub: Hub, rounds: Store, elsewhere: Elsewhere | None = None) -> FleetApp:
        """The application that answers the clients of a run."""
        hub.presence.task = str(plan.task)
        app = FleetApp(plan, hub, self.store, elsewhere or self._elsewhere, self.requests, self._shared(number, rounds))
        if self._loop:
            app.run_in(self._loop)
        return app

    def _shared(self, number: int, rounds: Store | None = None) -> OfService:
        return OfService(
            number, True, rounds, self._workers, self._guard, self._know, self._another_plan, self.missed,
            self._moved_on, self.final_model, self.runs.count,
        )  # fmt: skip

    def _know(self, rows: Sequence[ClientRow]) -> None:
        self.floor.know(rows)

    def _another_plan(self, k: int, number: int) -> PlanAnswer | None:
        return self.floor.another_plan(k, number)

    def _moved_on(self, k: int, named: int | None) -> bool:
        return self._elsewhere is not None and self.floor.moved_on(k, named)

    # Runs that are over

    def missed(self, k: int, taken: Taken) -> bool:
        """Whether a client took up a run that is over and was not told; then it is told at its next poll."""
        if self.floor.has_told(k, taken.run):
            return False
        run = self.runs.find(taken.run)
        client = self.floor.front.hub.presence.client(k)
        if run is None or run.state != "done" or client is None or not client.approved:
            return False
        with self._reopening:
            return self.floor.send_back(k, run.number) or (
                self.reopened(run, client) and self.floor.send_back(k, run.number)
            )

    def final_model(self, digest: str) -> bytes | None:
        """The model of a finished run, for a client that heard of its end before a restart, or from another replica."""
        with self._reopening:
            for run in self.runs.done():
                if run.detail.endswith(digest) and (self.floor.has(run.number) or self.reopened(run)):
                    return self.floor.model(digest)
        return None

    def reopened(self, run: SubmittedRun, client: ClientRow | None = None) -> bool:
        """Offer the news that a run is over, and its model; false if the run is not for this client."""
        plan = self.hosting.plan(run.plan_toml)
        if client is not None and not allows(client, str(plan.task)):
            return False
        options, _, _ = self.hosting.resolved(plan)
        with ExitStack() as held:
            rounds = held.enter_context(self.hosting.rounds(run.number))
            last = parked(rounds)
            if last is None:
                return False
            hub = self.hub(options.rules)
            hub.history.commit(last.round, None)
            if options.publish != "none":
                hub.models.release(last.round, last.state.weights)
            digest = model_sha256(last.state.weights)
            hub.polls.finish(DoneAnswer(round=last.round, model=digest, more=True, counted=None))
            app = self.app(run.number, plan, hub, rounds)
            self.floor.put_up(Stand(run.number, app, str(plan.task), held.pop_all(), over=monotonic()))
        return True
