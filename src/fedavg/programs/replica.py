"""One of several processes that are one server (docs/replicas.md): it answers clients, and leads if no other does."""

import gc
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from fedavg.errors import PlanError
from fedavg.fleets.http.protocol.certs import check_admitted
from fedavg.fleets.http.server.app import FleetApp
from fedavg.fleets.http.server.conduct import FIRST_REST
from fedavg.fleets.http.server.fleet import Stopped
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.logs import Seldom
from fedavg.fleets.http.server.metrics import Requests
from fedavg.fleets.http.server.store import Deposed, Store, StoreError
from fedavg.fleets.http.server.store.address import is_postgresql
from fedavg.fleets.http.server.store.leadership import Leadership
from fedavg.fleets.http.server.store.together import DONE
from fedavg.plan import Plan
from fedavg.programs.hosting import check_restored
from fedavg.programs.servable import (
    Options,
    by_closing,
    check_minimum,
    check_options,
    own_data,
    resolve_served,
)
from fedavg.programs.serve import check_no_service, listening, say_goodbye
from fedavg.programs.shared_run import Place, SharedRun
from fedavg.programs.signals import heeding_signals, reload_certificates
from fedavg.runner import Result
from fedavg.server import Watcher
from fedavg.setup import Setup, pinned

log = logging.getLogger("fedavg.fleet")

#: Seconds between tries to lead.
TRY_S: Final = 0.3
#: Addresses that mean every address of a machine: others cannot reach a replica by them.
WILDCARDS: Final = ("0.0.0.0", "::")


def serve_replica(
    plan: Plan,
    options: Options,
    place: Place,
    watch: Watcher | None = None,
    ready: Callable[[int], None] | None = None,
) -> Result:
    """Be one of the replicas that serve a plan until its last round, whoever leads then."""
    check_options(plan, options)
    plan = pinned(plan)
    data = own_data(plan)
    options = by_closing(plan, data, options)
    setup = resolve_served(plan, data, options.rules)
    check_minimum(setup, options.minimum)
    check_place(options, place)
    check_shareable(setup, options)
    options.directory.mkdir(parents=True, exist_ok=True)
    assert options.database
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(options.database))
        store.old_states_kept = options.keep_rounds
        check_no_service(store)
        check_restored(setup, store)
        leadership = Leadership(store.connections, name_of(options))
        stack.callback(leadership.close)
        leadership.attend()
        requests = Requests()
        rest_s = FIRST_REST * options.rules.deadline_s
        run = SharedRun(
            setup, data, options, store, place, lambda claims: Hub(options.guards, rest_s, claims), requests, DONE
        )
        return _Replica(run, leadership, place, requests).run(stack, watch, ready)


def name_of(options: Options) -> str:
    """What other replicas call this one in the database."""
    return f"{options.listen.host}:{options.listen.port}"


def check_place(options: Options, place: Place) -> None:
    """Refuse a replica that shares no database with others, or that they cannot reach."""
    if not is_postgresql(options.database):
        raise PlanError(
            f"--replica: got {'no --db' if not options.database else '--db with another database'}; expected --db "
            "postgresql://..., the one that all replicas share"
        )
    if options.tls and place.shown:
        check_admitted(options.tls, place.shown)
    if place.url is None and options.listen.host in WILDCARDS:
        raise PlanError(
            f"--replica: got --listen {options.listen.host}, where others cannot reach this replica; expected "
            "--replica-url with the address where they can"
        )


def check_shareable(setup: Setup, options: Options) -> None:
    """Refuse a run that several processes cannot serve together, with the reason."""
    reasons = {
        "a rule over single updates": (
            setup.single_updates,
            "single updates stay in the process that received them",
        ),
        "secagg": (setup.secagg is not None, "the session of a round is in the memory of one process"),
        "--anonymous": (options.guards.anonymous, "upload tokens are in the memory of the process that gave them"),
    }
    for name, (asked, why) in reasons.items():
        if asked:
            raise PlanError(f"--replica: got a run with {name}: {why}; expected none, or a server that is alone")


class _Replica:
    """One replica of a server with a plan, from start to end."""

    def __init__(self, run: SharedRun, leadership: Leadership, place: Place, requests: Requests) -> None:
        self._run, self._leadership, self._place, self._requests = run, leadership, place, requests
        self._hub, self._member = run.hub, run.member
        self._not_leading = Seldom(log, "cannot lead")

    def run(self, stack: ExitStack, watch: Watcher | None, ready: Callable[[int], None] | None) -> Result:
        run, hub, member = self._run, self._hub, self._member
        plan, options, store = run.setup.plan, run.options, run.store
        store.save_run(plan.to_toml(), plan.digest, "devices")
        hub.know(store.clients())
        app = FleetApp(plan, hub, store, member, self._requests)
        stack.callback(app.close)
        stack.enter_context(heeding_signals(hub.stop, lambda: reload_certificates(options.reload, member.certify)))
        stack.callback(run.close)
        listen = stack.enter_context(listening(app, plan, hub, store, options, run.peer_routes(app.answered)))
        member.start(self._place.url or f"{'https' if options.tls else 'http'}://{options.listen.host}:{listen.port}")
        gc.collect()
        gc.freeze()
        if ready:
            ready(listen.port)
        result = self._lead_or_follow(watch)
        say_goodbye(hub, result, options.linger_s, listen.connections)
        return result

    def _lead_or_follow(self, watch: Watcher | None) -> Result:
        """Lead or follow until the run is over, wherever it is led."""
        shared = self._hub.shared
        while True:
            if shared.stopping:
                raise Stopped("stopped by the operator; the other replicas continue, or this one once restarted")
            try:
                if self._member.done:
                    self._run.last()
                    return self._run.result()
                if (term := self._leadership.attempt(self._member.replica)) is not None:
                    log.info("leading", extra={"term": term, "replica": self._member.replica})
                    return self._led(watch)
            except Deposed as error:
                log.warning("no longer leading", extra={"detail": str(error)})
            except StoreError as error:
                if not error.retryable:
                    raise
                self._not_leading.tell(error)
            shared.pause(TRY_S)

    def _led(self, watch: Watcher | None) -> Result:
        try:
            return self._run.lead(self._leadership, watch)
        finally:
            self._leadership.resign()
