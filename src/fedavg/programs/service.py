"""A service: it holds who the clients are, and serves the runs that are submitted to it, side by side or in turn.

Clients, their keys, tokens and revocations are in the database of the service; each run has a directory and a database
of its own (a schema of PostgreSQL), and is served as `serve.py` serves a run that is alone, in a thread of its own. To
a client another run is like a server that was started again with another plan.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from threading import Condition, Thread
from time import time
from typing import Any, Final

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from fedavg.engine.model import Model
from fedavg.engine.threads import one_thread
from fedavg.errors import FedAvgError, PlanError
from fedavg.fleets.http.protocol.keys import ReplayGuard
from fedavg.fleets.http.protocol.messages import Extension, NewRun, Rollback
from fedavg.fleets.http.server.admin import Admin
from fedavg.fleets.http.server.app import FleetApp
from fedavg.fleets.http.server.conduct import FIRST_REST
from fedavg.fleets.http.server.fleet import HttpFleet, Stopped
from fedavg.fleets.http.server.floor import Floor, Stand
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.metrics import Requests
from fedavg.fleets.http.server.office import NoSuchRun, Office, RunEndpoints, RunLedger
from fedavg.fleets.http.server.refusals import HTTP_PROBLEMS, PLAIN_PATHS
from fedavg.fleets.http.server.roles import Keyring
from fedavg.fleets.http.server.rounds import Rules
from fedavg.fleets.http.server.sightings import Sightings
from fedavg.fleets.http.server.store import ChangeLog, Runs, Store, StoreError, SubmittedRun
from fedavg.fleets.http.server.store.roles import Roles
from fedavg.fleets.http.server.taking import OfService
from fedavg.programs.extension import extended
from fedavg.programs.hosting import Hosting, check_restored, take_over, weights_of
from fedavg.programs.servable import Options
from fedavg.programs.serve import (
    JOIN_USES,
    admin_token,
    both_listening,
    check_nothing_lost,
    done_answer,
    follow,
    ledger_of,
)
from fedavg.programs.signals import heeding_signals, reload_certificates
from fedavg.runlog.rundir import RunDir
from fedavg.runner import Result

log = logging.getLogger("fedavg.fleet")

#: Bytes of a safetensors file besides its numbers.
HEADER_BYTES: Final = 2**20
#: Seconds before a database that did not answer is asked again.
RETRY_S: Final = 5.0
#: Seconds between looks at which run waits for clients, while there are several; and at the queue.
BALANCE_S: Final = 0.1
IDLE_S: Final = 5.0
#: The states in which a run is at rest, and can be cancelled or go on.
AT_REST: Final = ("incomplete", "queued", "paused", "failed")


def serve_runs(options: Options, allowed: Sequence[str] = (), ready: Callable[[int], None] | None = None) -> None:
    """Serve runs as they are submitted, until the operator stops it. Started again, it goes on where it was.

    `allowed` names the packages that tasks and other parts of submitted plans may come from.
    """
    options.directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(options.database or options.directory / "fleet.db"))
        store.acquire(f"fedavg serve {options.listen.host}:{options.listen.port}")
        if store.run() is not None:
            raise StoreError(f"{store.name} belongs to one run; start it by 'fedavg serve PLAN', or use another one")
        service = Service(store, options, allowed)
        stack.callback(service.close)
        stack.enter_context(heeding_signals(service.stop, lambda: reload_certificates(options.reload)))
        token = admin_token(store, options, options.join_uses or JOIN_USES)
        keyring = Keyring(token, Roles(store.connections))
        admin = Admin(lambda: service.floor.shown, store, keyring, service.stop)
        runs = RunEndpoints(service, service.floor.front.answered, keyring, service.floor.front.blocking)
        front = Starlette(
            routes=[Mount("", app=service.dispatch)], middleware=PLAIN_PATHS, exception_handlers=HTTP_PROBLEMS
        )
        place = stack.enter_context(both_listening(front, [*admin.routes, *runs.routes], options, service.stop))
        service.run_in(place.loop)
        gc.collect()
        gc.freeze()
        if ready:
            ready(place.port)
        service.serve()


@dataclass
class RunUnderWay:
    """A run that is served now. `wanted` is what the operator wants to become of it."""

    run: SubmittedRun
    wanted: str | None = None
    #: What clients are offered of it, once they are.
    hub: Hub | None = None
    thread: Thread | None = None


class Service(Office):
    """The queue of runs, and the runs that are offered now, on the `floor`."""

    def __init__(self, store: Store, options: Options, allowed: Sequence[str]) -> None:
        self._store, self._options, self._hosting = store, options, Hosting(options, tuple(allowed))
        self._runs = Runs(store.connections)
        #: Guards what is under way; notified when there may be something to do.
        self._changed = Condition()
        self._stopping = False
        self._under_way: dict[int, RunUnderWay] = {}
        #: What no run can go on after.
        self._fatal: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="update")
        self._requests, self._sightings, self._guard = Requests(), Sightings(), ReplayGuard()
        self.floor = Floor(self._front)

    def close(self) -> None:
        self.floor.front.close()
        self.floor.close()
        self._workers.shutdown()

    async def dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Each client speaks with the run that it is at."""
        app = self.floor.app_for(scope) if scope["type"] == "http" else self.floor.front
        await app.asgi(scope, receive, send)

    def run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.floor.front.run_in(loop)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            hubs = [each.hub for each in self._under_way.values() if each.hub]
            self._changed.notify_all()
        for hub in (self.floor.front.hub, *hubs):
            hub.stop()

    def _front(self, floor: Floor) -> FleetApp:
        """What clients speak with that are at no run."""
        hub = self._hub(self._options.rules)
        return FleetApp(None, hub, self._store, None, self._requests, self._of_service(0, None, floor))

    # The queue

    def serve(self) -> None:
        """The first runs of the queue, so many at a time, until the service is stopped."""
        with one_thread():  # what each run asks for by itself: none undoes it while others go on
            while not self._stopping and self._fatal is None:
                try:
                    for run in self._runs.next(self._options.side_by_side):
                        self._begin(run)
                except StoreError as error:
                    if not error.retryable:
                        raise
                    log.error("cannot go on; trying again", extra={"detail": str(error)})
                    self._pause(RETRY_S)
                    continue
                self.floor.balance()
                self._pause(BALANCE_S if self.floor.busy else IDLE_S)
            self.stop()
            for each in list(self._under_way.values()):
                if each.thread:
                    each.thread.join()
        if self._fatal is not None:
            raise self._fatal

    def _pause(self, seconds: float) -> None:
        """Until something is submitted or changed, or for so long."""
        with self._changed:
            if not self._stopping and self._fatal is None:
                self._changed.wait(seconds)

    def _begin(self, run: SubmittedRun) -> None:
        with self._changed:
            if self._stopping or run.number in self._under_way or len(self._under_way) >= self._options.side_by_side:
                return
            each = self._under_way[run.number] = RunUnderWay(run)
        each.thread = Thread(target=self._serve_one, args=(each,), name=f"run {run.number}", daemon=True)
        each.thread.start()

    def _serve_one(self, each: RunUnderWay) -> None:
        """One run from begin to end, in a thread of its own."""
        number = each.run.number
        try:
            self._runs.set_state(number, "running")
            log.info("run begins", extra={"run": number, "plan": each.run.plan_digest})
            state, detail = self._ended(each)
            if state == "done" and self._runs.one(number).plan_digest != each.run.plan_digest:
                state = "queued"  # it was extended at the very end
            self._runs.set_state(number, state, detail)
            log.info("run ends", extra={"run": number, "state": state, "detail": detail})
            if state == "done":
                self.floor.end(number)
            elif not self._stopping:
                self.floor.take_down(number)  # who waits is held, and told when there is a run again
        except StoreError as error:
            if error.retryable:  # it is under way still: it is begun again
                log.error("cannot go on; trying again", extra={"run": number, "detail": str(error)})
                self._pause(RETRY_S)
            else:
                self._fatal = error
        except BaseException as error:
            self._fatal = error
        finally:
            with self._changed:
                del self._under_way[number]
                self._changed.notify_all()

    def _ended(self, each: RunUnderWay) -> tuple[str, str]:
        """Serve a run until it ends: in which state it is then, and why."""
        try:
            result = self._trained(each)
            assert each.hub
            each.hub.polls.finish(done_answer(result, more=True))
            return "done", f"{result.summary.rounds} rounds, model {result.summary.model_sha256}"
        except Stopped:
            return each.wanted or "running", ""  # a service that is stopped goes on with it when it is back
        except FedAvgError as error:
            if isinstance(error, StoreError) and error.retryable:
                raise
            return "failed", str(error)
        except Exception as error:  # of a task's own code: it ends its run, not the service
            log.exception("run failed", extra={"run": each.run.number})
            return "failed", f"{type(error).__name__}: {error}"

    def _trained(self, each: RunUnderWay) -> Result:
        run = each.run
        plan = self._hosting.plan(run.plan_toml)
        options, data, setup = self._hosting.resolved(plan)
        options = replace(options, directory=self._hosting.directory(run.number))
        options.directory.mkdir(parents=True, exist_ok=True)
        content = self._runs.model(run.number)
        with ExitStack() as held:
            rounds = held.enter_context(self._hosting.rounds(run.number))
            rounds.begin_term()
            check_restored(setup, rounds)
            take_over(rounds, plan, run)
            check_nothing_lost(RunDir(options.directory), rounds.committed())
            hub = self._hub(options.rules)
            hub.presence.task = str(plan.task)
            fleet = HttpFleet(
                data.clients, data.test, hub, rounds, options.rules, options.minimum, options.authority,
                ledger_of(setup, rounds, options.directory),
                initial=None if content is None else weights_of(setup, content),
            )  # fmt: skip
            offered = self._of_service(run.number, rounds, self.floor)
            app = FleetApp(plan, hub, self._store, None, self._requests, offered)
            if self._loop:
                app.run_in(self._loop)
            self.floor.put_up(Stand(run.number, app, str(plan.task), held.pop_all()))
        with self._changed:
            each.hub = hub
            if self._stopping or each.wanted:
                hub.stop()
        return follow(setup, fleet, hub, rounds, options, None)

    def _hub(self, rules: Rules) -> Hub:
        hub = Hub(self._options.guards, FIRST_REST * rules.deadline_s, None, self._sightings)
        hub.know(self._store.clients())
        return hub

    def _of_service(self, number: int, rounds: Store | None, floor: Floor) -> OfService:
        shared = (self._workers, self._guard, floor.know, floor.another_plan, self._runs.count)
        return OfService(number, True, rounds, *shared)

    # What operators ask, in threads of the handlers

    def submit(self, order: NewRun, by: str) -> int:
        plan = self._hosting.plan(order.plan)
        self._hosting.resolved(plan)
        number = self._runs.submit(plan.to_toml(), plan.digest, order.name, by, time(), order.init)
        log.info("run submitted", extra={"run": number, "plan": plan.digest, "by": by})
        self._look_again()
        return number

    def model_bytes(self, number: int) -> int:
        _, _, setup = self._hosting.resolved(self._hosting.plan(self._one(number).plan_toml))
        return 4 * Model(setup.task, setup.plan.seed).vector.numel() * 2 + HEADER_BYTES

    def give_model(self, number: int, content: bytes) -> None:
        run = self._one(number)
        if run.state != "incomplete" or run.init_sha256 != sha256(content).hexdigest():
            raise PlanError(f"run {number} waits for no such model; submit another run with --init")
        _, _, setup = self._hosting.resolved(self._hosting.plan(run.plan_toml))
        weights_of(setup, content)
        self._runs.give_model(number, content)
        self._look_again()

    def runs(self) -> list[tuple[SubmittedRun, int | None]]:
        with self._changed:
            last = {number: each.hub.history.last for number, each in self._under_way.items() if each.hub}
        return [(run, last.get(run.number)) for run in self._runs.all()]

    def pause(self, number: int) -> None:
        self._end(number, "paused", ("queued", "incomplete"))

    def cancel(self, number: int) -> None:
        self._end(number, "cancelled", AT_REST)

    def go_on(self, number: int) -> None:
        run = self._one(number)
        if run.state not in ("paused", "failed"):
            raise PlanError(f"run {number} is {run.state}; expected one that is paused or has failed")
        waits = run.init_sha256 is not None and self._runs.model(number) is None
        self._runs.set_state(number, "incomplete" if waits else "queued")
        self._look_again()

    def extend(self, number: int, extension: Extension, by: str) -> None:
        run = self._one(number)
        if run.state not in ("queued", "running", "paused", "done"):
            raise PlanError(f"run {number} is {run.state}; expected one that is queued, running, paused or done")
        committed = self._committed(number)
        plan = extended(self._hosting.plan(run.plan_toml), extension, committed)
        self._hosting.resolved(plan)
        change = {"at": int(time()), "after_round": committed, "by": by, **_said(extension), "plan": plan.digest}
        state = "queued" if run.state == "done" else run.state
        self._runs.change(number, plan.to_toml(), plan.digest, change, state)
        log.info("run extended", extra={"run": number, **change})
        self._told_to_end(number, "running")  # it is taken up again at once, by its new plan
        self._look_again()

    def roll_back(self, number: int, wanted: Rollback, by: str) -> None:
        run = self._one(number)
        if run.state not in ("paused", "done", "failed"):
            raise PlanError(f"run {number} is {run.state}; expected one that is paused, done or has failed")
        noted = self._hosting.roll_back(run, wanted.to_round, by)
        self._runs.change(number, run.plan_toml, run.plan_digest, noted, "paused")
        log.warning("run rolled back", extra={"run": number, **noted})
        self.floor.take_down(number)  # what was offered, and its model, are not the run's any more

    def ledger(self, number: int) -> RunLedger:
        self._one(number)
        with self._hosting.rounds(number) as rounds:
            return RunLedger(rounds.ledger(), ChangeLog(rounds.connections).all())

    def _end(self, number: int, state: str, resting: tuple[str, ...]) -> None:
        run = self._one(number)
        if self._told_to_end(number, state):
            return
        if run.state not in resting:
            raise PlanError(f"run {number} is {run.state}; expected one that is under way or {', '.join(resting)}")
        self._runs.set_state(number, state)

    def _told_to_end(self, number: int, state: str) -> bool:
        """Whether it is this run that is under way: it parks its round, and is in that state then."""
        with self._changed:
            each = self._under_way.get(number)
            if each is None:
                return False
            each.wanted = state
        if each.hub:
            each.hub.stop()
        return True

    def _committed(self, number: int) -> int:
        with self._changed:
            each = self._under_way.get(number)
            if each and each.hub:
                return each.hub.history.last
        return self._hosting.committed(number)

    def _one(self, number: int) -> SubmittedRun:
        found = [run for run in self._runs.all() if run.number == number]
        if not found:
            raise NoSuchRun(f"there is no run {number}; 'fedavg runs' lists them")
        return found[0]

    def _look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _said(extension: Extension) -> dict[str, Any]:
    said = {name: getattr(extension, name) for name in ("rounds", "lr", "from_round")}
    return {name: value for name, value in said.items() if value is not None}
