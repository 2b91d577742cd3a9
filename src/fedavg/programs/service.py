"""A service: it knows the clients, and serves the runs that are submitted to it, concurrently or in turn.

Clients, their keys, tokens and revocations are in the database of the service; each run has its own directory and
database (a schema of PostgreSQL), and is served in its own thread as `serve.py` serves a single run. To a client,
another run looks like a server that was restarted with another plan.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Final, final

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount

from fedavg.engine.threads import one_thread
from fedavg.errors import FedAvgError
from fedavg.fleets.http.server.admin import Admin
from fedavg.fleets.http.server.fleet import HttpFleet, Stopped
from fedavg.fleets.http.server.floor import Stand
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.office import RunEndpoints
from fedavg.fleets.http.server.refusals import HTTP_PROBLEMS, PLAIN_PATHS
from fedavg.fleets.http.server.roles import Keyring
from fedavg.fleets.http.server.store import Store, StoreError, SubmittedRun
from fedavg.fleets.http.server.store.roles import Roles
from fedavg.programs.desk import FrontDesk, NowServed
from fedavg.programs.hosting import Hosting, check_restored, take_over, weights_of
from fedavg.programs.premises import Premises
from fedavg.programs.servable import Options
from fedavg.programs.serve import (
    JOIN_USES,
    Listening,
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

#: Seconds before a query to a database that did not answer is repeated.
RETRY_S: Final = 5.0
#: Seconds between checks of which run waits for clients, while there are several; and of the queue.
BALANCE_S: Final = 0.1
IDLE_S: Final = 5.0


def serve_runs(options: Options, allowed: Sequence[str] = (), ready: Callable[[int], None] | None = None) -> None:
    """Serve runs as they are submitted, until the operator stops the service. After a restart it continues.

    `allowed` names the packages that tasks and other parts of submitted plans may come from.
    """
    options.directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(options.database or options.directory / "fleet.db"))
        store.acquire(f"fedavg serve {options.listen.host}:{options.listen.port}")
        check_no_single_run(store)
        hosting = Hosting(options, tuple(allowed))
        hosting.bring_up_to_date()
        premises = Premises(store, hosting)
        stack.callback(premises.close)
        service = Service(premises)
        stack.enter_context(heeding_signals(service.stop, lambda: reload_certificates(options.reload)))
        place = stack.enter_context(open_to_all(premises, service, service.stop))
        gc.collect()
        gc.freeze()
        if ready:
            ready(place.port)
        service.serve()


def check_no_single_run(store: Store) -> None:
    if store.run() is not None:
        raise StoreError(f"{store.name} belongs to one run; start it by 'fedavg serve PLAN', or use another one")


@contextmanager
def open_to_all(
    premises: Premises, now: NowServed, stop: Callable[[], None], more: Sequence[BaseRoute] = ()
) -> Iterator[Listening]:
    """Listen for clients and operators until the end, and answer `more`."""
    store, options, front = premises.store, premises.hosting.options, premises.floor.front
    keyring = Keyring(admin_token(store, options, options.join_uses or JOIN_USES), Roles(store.connections))
    admin = Admin(lambda: premises.floor.shown, store, keyring, stop)
    desk = FrontDesk(premises.runs, premises.hosting, now)
    runs = RunEndpoints(desk, front.answered, keyring, front.blocking)
    doors = Starlette(
        routes=[*more, Mount("", app=premises.dispatch)], middleware=PLAIN_PATHS, exception_handlers=HTTP_PROBLEMS
    )
    with both_listening(doors, [*admin.routes, *runs.routes], options, stop) as place:
        premises.run_in(place.loop)
        yield place


@dataclass
class RunUnderWay:
    """A run that is served now. `wanted` is the state that the operator wants for it."""

    run: SubmittedRun
    wanted: str | None = None
    #: What clients are offered, once the run is open to them.
    hub: Hub | None = None
    thread: Thread | None = None


@final
class Service(NowServed):
    """The queue of runs, and the runs that are offered now, on the floor of the premises."""

    def __init__(self, premises: Premises) -> None:
        self._premises, self._hosting, self._floor = premises, premises.hosting, premises.floor
        self._options, self._runs = premises.hosting.options, premises.runs
        #: Guards what is under way; notified when there may be something to do.
        self._changed = Condition()
        self._stopping = False
        self._under_way: dict[int, RunUnderWay] = {}
        #: An error after which no run can continue.
        self._fatal: BaseException | None = None

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            hubs = [each.hub for each in self._under_way.values() if each.hub]
            self._changed.notify_all()
        for hub in (self._floor.front.hub, *hubs):
            hub.stop()

    # The queue

    def serve(self) -> None:
        """Serve the first runs of the queue, several at a time if so set, until the service is stopped."""
        with one_thread():  # each run asks for this too; set here, no run undoes it while others continue
            while not self._stopping and self._fatal is None:
                try:
                    for run in self._runs.next(self._options.side_by_side):
                        self._begin(run)
                except StoreError as error:
                    if not error.retryable:
                        raise
                    log.error("cannot continue; trying again", extra={"detail": str(error)})
                    self._pause(RETRY_S)
                    continue
                self._floor.balance()
                self._pause(BALANCE_S if self._floor.busy else IDLE_S)
            self.stop()
            for each in list(self._under_way.values()):
                if each.thread:
                    each.thread.join()
        if self._fatal is not None:
            raise self._fatal

    def _pause(self, seconds: float) -> None:
        """Wait until something is submitted or changed, at most for so long."""
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
        """One run from start to end, in its own thread."""
        number = each.run.number
        try:
            self._runs.set_state(number, "running")
            log.info("run begins", extra={"run": number, "plan": each.run.plan_digest})
            state, detail = self._ended(each)
            if state == "done" and self._runs.one(number).plan_digest != each.run.plan_digest:
                state = "queued"  # it was extended just as it ended
            self._runs.set_state(number, state, detail)
            log.info("run ends", extra={"run": number, "state": state, "detail": detail})
            if state == "done":
                self._floor.end(number)
            elif not self._stopping:
                self._floor.take_down(number)  # waiting clients are held until there is a run again
        except StoreError as error:
            if error.retryable:  # the run is still under way: start it again
                log.error("cannot continue; trying again", extra={"run": number, "detail": str(error)})
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
        """Serve a run until it ends; returns its state then, and why."""
        try:
            result = self._trained(each)
            assert each.hub
            each.hub.polls.finish(done_answer(result, more=True))
            return "done", what_came_of(result)
        except Stopped:
            return each.wanted or "running", ""  # a stopped service continues the run when it is back
        except FedAvgError as error:
            if isinstance(error, StoreError) and error.retryable:
                raise
            return "failed", str(error)
        except Exception as error:  # from a task's own code: it ends its run, not the service
            log.exception("run failed", extra={"run": each.run.number})
            return "failed", f"{type(error).__name__}: {error}"

    def _trained(self, each: RunUnderWay) -> Result:
        run = each.run
        plan = self._hosting.plan(run.plan_toml)
        options, data, setup = self._hosting.housed(plan, run.number)
        content = self._runs.model(run.number)
        with ExitStack() as held:
            rounds = held.enter_context(self._hosting.rounds(run.number))
            rounds.begin_term()
            check_restored(setup, rounds)
            take_over(rounds, plan, run)
            check_nothing_lost(RunDir(options.directory), rounds.committed())
            hub = self._premises.hub(options.rules)
            fleet = HttpFleet(
                data.clients, data.test, hub, rounds, options.rules, options.minimum, options.authority,
                ledger_of(setup, rounds, options.directory),
                initial=None if content is None else weights_of(setup, content),
            )  # fmt: skip
            app = self._premises.app(run.number, plan, hub, rounds)
            self._floor.put_up(Stand(run.number, app, str(plan.task), held.pop_all()))
        with self._changed:
            each.hub = hub
            if self._stopping or each.wanted:
                hub.stop()
        return follow(setup, fleet, hub, rounds, options, None)

    # What operators ask, in threads of the handlers

    def committed(self) -> Mapping[int, int]:
        with self._changed:
            return {number: each.hub.history.last for number, each in self._under_way.items() if each.hub}

    def told_to_end(self, number: int, state: str) -> bool:
        with self._changed:
            each = self._under_way.get(number)
            if each is None:
                return False
            each.wanted = state
        if each.hub:
            each.hub.stop()
        return True

    def offer_no_more(self, number: int) -> None:
        self._floor.take_down(number)

    def look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()


def what_came_of(result: Result) -> str:
    """What the list of runs says about a finished run."""
    return f"{result.summary.rounds} rounds, model {result.summary.model_sha256}"
