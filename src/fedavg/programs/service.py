"""A service: it holds who the clients are, and serves the runs that are submitted to it, one after another.

Clients, their keys, tokens and revocations are in the database of the service; each run has a directory and a database
of its own (a schema of PostgreSQL), and is served as `serve.py` serves a run that is alone. To a client a new run is
like a server that was started again with another plan.
"""

import asyncio
import gc
import logging
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from threading import Condition
from time import time
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send
from torch import Tensor

from fedavg.engine.model import Model
from fedavg.errors import FedAvgError, PlanError
from fedavg.fleets.http.protocol.messages import Extension, NewRun
from fedavg.fleets.http.server.admin import Admin
from fedavg.fleets.http.server.app import FleetApp
from fedavg.fleets.http.server.conduct import FIRST_REST
from fedavg.fleets.http.server.fleet import HttpFleet, Stopped
from fedavg.fleets.http.server.gates import OfOperator
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.metrics import Requests
from fedavg.fleets.http.server.office import NoSuchRun, Office, RunEndpoints
from fedavg.fleets.http.server.refusals import HTTP_PROBLEMS, PLAIN_PATHS
from fedavg.fleets.http.server.rounds import Rules
from fedavg.fleets.http.server.store import Runs, Store, StoreError, SubmittedRun
from fedavg.fleets.http.server.taking import OfService
from fedavg.plan import Plan, make_plan
from fedavg.programs.extension import extended
from fedavg.programs.servable import (
    Options,
    OwnData,
    by_closing,
    check_data_is_named,
    check_minimum,
    check_options,
    own_data,
    resolve_served,
    without_authority,
)
from fedavg.programs.serve import (
    JOIN_USES,
    admin_token,
    both_listening,
    check_nothing_lost,
    done_answer,
    follow,
    ledger_of,
    stopped_by_signals,
)
from fedavg.runlog.rundir import RunDir
from fedavg.runner import Result
from fedavg.setup import Setup
from fedavg.specs import importing_only

log = logging.getLogger("fedavg.fleet")

#: Bytes of a safetensors file besides its numbers.
HEADER_BYTES: Final = 2**20
#: Seconds before a database that did not answer is asked again.
RETRY_S: Final = 5.0
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
        stack.enter_context(stopped_by_signals(service.stop))
        token = admin_token(store, options, options.join_uses or JOIN_USES)
        admin = Admin(lambda: service.app, store, token, service.stop)
        runs = RunEndpoints(service, service.app.answered, OfOperator(token), service.app.blocking)
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


class Service(Office):
    """The queue of runs, and the run that is offered now, in `app`."""

    def __init__(self, store: Store, options: Options, allowed: Sequence[str]) -> None:
        self._store, self._options, self._allowed = store, options, tuple(allowed)
        self._runs = Runs(store.connections)
        self._changed = Condition()
        self._stopping = False
        #: The run under way, and what the operator wants to become of it.
        self._under_way: int | None = None
        self._wanted: str | None = None
        #: Whether it is the run that clients are offered by now.
        self._offered = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="update")
        self._requests = Requests()
        #: What the run that is offered holds open.
        self._held = ExitStack()
        self.app = self._no_run()

    def close(self) -> None:
        self._held.close()
        self._workers.shutdown()

    async def dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Clients speak with the run that is offered."""
        await self.app.asgi(scope, receive, send)

    def run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.app.run_in(loop)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.app.hub.stop()

    def _no_run(self) -> FleetApp:
        """What clients speak with while there is no run."""
        return FleetApp(
            None, self._hub(self._options.rules), self._store, None, self._requests, self._of_service(1, None)
        )

    # The queue

    def serve(self) -> None:
        """One run after another, until the service is stopped."""
        while not self._stopping:
            try:
                run = self._runs.next()
                if run is not None:
                    self._serve_one(run)
                    continue
            except StoreError as error:
                if not error.retryable:
                    raise
                log.error("can not go on; trying again", extra={"detail": str(error)})
                self._pause(RETRY_S)
                continue
            self._pause(None)

    def _pause(self, seconds: float | None) -> None:
        """Until something is submitted or changed, or for so long."""
        with self._changed:
            if self._stopping or (seconds is None and self._runs.next() is not None):
                return
            self._changed.wait(seconds)

    def _serve_one(self, run: SubmittedRun) -> None:
        with self._changed:
            self._under_way, self._wanted, self._offered = run.number, None, False
        self._runs.set_state(run.number, "running")
        log.info("run begins", extra={"run": run.number, "plan": run.plan_digest})
        state, detail = "done", ""
        try:
            result = self._trained(run)
            self.app.hub.polls.finish(done_answer(result, more=True))
            detail = f"{result.summary.rounds} rounds, model {result.summary.model_sha256}"
        except Stopped:
            state = self._wanted or "running"  # a service that is stopped goes on with it when it is back
        except StoreError as error:
            if error.retryable:
                raise
            state, detail = "failed", str(error)
        except FedAvgError as error:
            state, detail = "failed", str(error)
        except Exception as error:  # of a task's own code: it ends its run, not the service
            log.exception("run failed", extra={"run": run.number})
            state, detail = "failed", f"{type(error).__name__}: {error}"
        finally:
            with self._changed:
                self._under_way, self._wanted, self._offered = None, None, False
        if state == "done" and self._runs.one(run.number).plan_digest != run.plan_digest:
            state = "queued"  # it was extended at the very end
        self._runs.set_state(run.number, state, detail)
        log.info("run ends", extra={"run": run.number, "state": state, "detail": detail})
        if state != "done" and not self._stopping:
            self._offer(self._no_run())  # who waits is held, and told when there is a run again

    def _trained(self, run: SubmittedRun) -> Result:
        plan = self._plan(run.plan_toml)
        options, data, setup = self._resolved(plan)
        options = replace(options, directory=self._directory(run.number))
        options.directory.mkdir(parents=True, exist_ok=True)
        content = self._runs.model(run.number)
        self._held.close()
        rounds = self._held.enter_context(self._rounds(run.number))
        rounds.begin_term()
        self._take_over(rounds, plan)
        check_nothing_lost(RunDir(options.directory), rounds.committed())
        hub = self._hub(options.rules)
        hub.presence.task = str(plan.task)
        fleet = HttpFleet(
            data.clients, data.test, hub, rounds, options.rules, options.minimum, options.authority,
            ledger_of(setup, rounds, options.directory),
            initial=None if content is None else _weights(setup, content),
        )  # fmt: skip
        self._offer(FleetApp(plan, hub, self._store, None, self._requests, self._of_service(run.number, rounds)))
        with self._changed:
            self._offered = True
            if self._stopping or self._wanted:
                hub.stop()
        return follow(setup, fleet, hub, rounds, options, None)

    @staticmethod
    def _take_over(rounds: Store, plan: Plan) -> None:
        """The run is of this plan from now on. Work for another one, which it was of, would not count any more."""
        there = rounds.run()
        if there is not None and there.plan_digest != plan.digest:
            parked = rounds.open_round()
            if parked is not None:
                rounds.abandon_round(parked.round, parked.attempt, "the plan was extended")
            rounds.change_plan(plan.to_toml(), plan.digest)
        rounds.save_run(plan.to_toml(), plan.digest, "devices")

    def _offer(self, app: FleetApp) -> None:
        """Offer another run; whoever waits for the one before is told."""
        before, self.app = self.app, app
        if self._loop:
            app.run_in(self._loop)
        before.hub.shared.wake(before.hub.presence.everyone())

    def _hub(self, rules: Rules) -> Hub:
        hub = Hub(self._options.guards, FIRST_REST * rules.deadline_s)
        hub.know(self._store.clients())
        return hub

    def _of_service(self, number: int, rounds: Store | None) -> OfService:
        return OfService(number, True, rounds, self._workers)

    def _directory(self, number: int) -> Path:
        return self._options.directory / "runs" / str(number)

    def _rounds(self, number: int) -> Store:
        """The database of one run."""
        if self._options.database and self._options.database.startswith("postgresql"):
            return Store.open(self._options.database, f"run_{number}")
        return Store.open(self._directory(number) / "fleet.db")

    def _plan(self, text: str) -> Plan:
        """A plan that was submitted. How fast and where it runs is this machine's matter."""
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PlanError(f"the plan is not TOML: {error}") from None
        check_data_is_named(values)
        own = {spec.name: getattr(Plan(), spec.name) for spec in fields(Plan) if spec.metadata["runtime"]}
        return make_plan({**values, **own, "data_dir": values.get("data_dir")}, "the plan")

    def _resolved(self, plan: Plan) -> tuple[Options, OwnData, Setup]:
        options = without_authority(self._options, plan)
        check_options(plan, options)
        with importing_only(self._allowed):
            data = own_data(plan)
            options = by_closing(plan, data, options)
            setup = resolve_served(plan, data, options.rules)
        check_minimum(setup, options.minimum)
        return options, data, setup

    # What operators ask, in threads of the handlers

    def submit(self, order: NewRun, by: str) -> int:
        plan = self._plan(order.plan)
        self._resolved(plan)
        number = self._runs.submit(plan.to_toml(), plan.digest, order.name, by, time(), order.init)
        log.info("run submitted", extra={"run": number, "plan": plan.digest, "by": by})
        self._look_again()
        return number

    def model_bytes(self, number: int) -> int:
        _, _, setup = self._resolved(self._plan(self._one(number).plan_toml))
        return 4 * Model(setup.task, setup.plan.seed).vector.numel() * 2 + HEADER_BYTES

    def give_model(self, number: int, content: bytes) -> None:
        run = self._one(number)
        if run.state != "incomplete" or run.init_sha256 != sha256(content).hexdigest():
            raise PlanError(f"run {number} waits for no such model; submit another run with --init")
        _, _, setup = self._resolved(self._plan(run.plan_toml))
        _weights(setup, content)
        self._runs.give_model(number, content)
        self._look_again()

    def runs(self) -> list[tuple[SubmittedRun, int | None]]:
        last = self.app.hub.history.last if self._offered else None
        return [(run, last if run.number == self._under_way else None) for run in self._runs.all()]

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
        plan = extended(self._plan(run.plan_toml), extension, committed)
        self._resolved(plan)
        change = {"at": int(time()), "after_round": committed, "by": by, **_said(extension), "plan": plan.digest}
        state = "queued" if run.state == "done" else run.state
        self._runs.change(number, plan.to_toml(), plan.digest, change, state)
        log.info("run extended", extra={"run": number, **change})
        self._told_to_end(number, "running")  # it is taken up again at once, by its new plan
        self._look_again()

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
            if self._under_way != number:
                return False
            self._wanted = state
            if self._offered:
                self.app.hub.stop()
            return True

    def _committed(self, number: int) -> int:
        if self._under_way == number and self._offered:
            return self.app.hub.history.last
        if not (self._directory(number)).exists():
            return 0
        with self._rounds(number) as rounds:
            return rounds.last_round()

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


def _weights(setup: Setup, content: bytes) -> Tensor:
    """The flat weights, shape (P,), of a model by the names of its tensors; refused if they are not the task's."""
    model = Model(setup.task, setup.plan.seed)
    try:
        model.module.load_state_dict(load(content))
    except (SafetensorError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise PlanError(f"--init: the model does not fit task '{setup.plan.task}': {reason}") from None
    return model.vector.clone()
