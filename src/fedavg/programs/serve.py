"""A server from start to end: listen, train by rounds over the network, commit each to the database, say goodbye.

Everything that must last is in the database when a round is committed; a server that was killed at any moment resumes
from there with the round that was under way.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, Final

from safetensors.torch import load, save
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from fedavg.engine.model import model_sha256
from fedavg.errors import DiskError
from fedavg.files import write_atomically
from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.messages import DoneAnswer
from fedavg.fleets.http.server.admin import Admin
from fedavg.fleets.http.server.app import FleetApp
from fedavg.fleets.http.server.conduct import FIRST_REST
from fedavg.fleets.http.server.fleet import HttpFleet
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.listener import Listener
from fedavg.fleets.http.server.refusals import HTTP_PROBLEMS, PLAIN_PATHS
from fedavg.fleets.http.server.roles import Keyring
from fedavg.fleets.http.server.store import Runs, Store, StoreError
from fedavg.fleets.http.server.store.roles import Roles
from fedavg.plan import Plan
from fedavg.privacy.served import BudgetSpent, ServedLedger
from fedavg.programs.hosting import check_restored
from fedavg.programs.servable import Options, by_closing, check_minimum, check_options, own_data, resolve_served
from fedavg.programs.signals import heeding_signals, reload_certificates
from fedavg.runlog.checkpoint import from_tensors, to_tensors
from fedavg.runlog.rundir import RunDir
from fedavg.runlog.summary import status_of
from fedavg.runner import Result, finish
from fedavg.server import Event, Round, Start, Watcher, event_row, rounds
from fedavg.setup import Setup, pinned
from fedavg.types import State

log = logging.getLogger("fedavg.fleet")

ADMIN_TOKEN: Final = "admin-token"
JOIN_TOKEN: Final = "join-token"
LEDGER: Final = "ledger.jsonl"
#: Seconds after the last poll in which a client that stays connected may still begin to fetch the final model.
FETCH_S: Final = 2.0
#: How many clients the first join token is for if the plan does not say K.
JOIN_USES: Final = 1000


@dataclass(frozen=True)
class Listening:
    """Where clients connect, and how many are connected now."""

    port: int
    connections: Callable[[], int]
    loop: asyncio.AbstractEventLoop


def serve(
    plan: Plan, options: Options, watch: Watcher | None = None, ready: Callable[[int], None] | None = None
) -> Result:
    """Train the plan on the clients that join; continues where a server with the same database stopped.

    `ready` is called with the port once clients can connect.
    """
    check_options(plan, options)
    plan = pinned(plan)
    data = own_data(plan)
    options = by_closing(plan, data, options)
    hub = Hub(options.guards, FIRST_REST * options.rules.deadline_s)
    setup = resolve_served(plan, data, options.rules)
    check_minimum(setup, options.minimum)
    options.directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(options.database or options.directory / "fleet.db"))
        store.acquire(f"fedavg serve {options.listen.host}:{options.listen.port}")
        check_no_service(store)
        store.old_states_kept = options.keep_rounds
        check_restored(setup, store)
        store.save_run(plan.to_toml(), plan.digest, "devices")
        check_nothing_lost(RunDir(options.directory), store.committed())  # before anything is written or listens
        hub.know(store.clients())
        ledger = ledger_of(setup, store, options.directory)
        fleet = HttpFleet(
            data.clients, data.test, hub, store, options.rules, options.minimum, options.authority, ledger
        )
        app = FleetApp(plan, hub, store)
        stack.callback(app.close)
        stack.enter_context(heeding_signals(hub.stop, lambda: reload_certificates(options.reload)))
        place = stack.enter_context(listening(app, plan, hub, store, options))
        gc.collect()
        gc.freeze()  # these objects live to the end: keep the collector off them, so that clients do not wait for it
        if ready:
            ready(place.port)
        result = follow(setup, fleet, hub, store, options, watch)
        say_goodbye(hub, result, options.linger_s, place.connections)
        return result


def check_no_service(store: Store) -> None:
    if Runs(store.connections).all():
        raise StoreError(f"{store.name} belongs to a service with runs of its own; start it by 'fedavg serve'")


def ledger_of(setup: Setup, store: Store, directory: Path) -> ServedLedger | None:
    """What the run has cost in privacy so far, from the record of who took part."""
    if setup.budget is None:
        return None
    return ServedLedger(setup.budget, setup.plan.dp_epsilon, directory / LEDGER, store.attempts())


@contextmanager
def listening(
    app: FleetApp, plan: Plan, hub: Hub, store: Store, options: Options, more: Sequence[BaseRoute] = ()
) -> Iterator[Listening]:
    """Serve clients and the operator until the end, and also `more`."""
    app.asgi.router.routes.extend(more)
    token = admin_token(store, options, options.join_uses or plan.clients or JOIN_USES)
    admin = Admin(lambda: app, store, Keyring(token, Roles(store.connections)), hub.stop)
    with both_listening(app.asgi, admin.routes, options, hub.stop) as place:
        app.run_in(place.loop)
        yield place


@contextmanager
def both_listening(
    asgi: Starlette, admin: Sequence[BaseRoute], options: Options, stop: Callable[[], None]
) -> Iterator[Listening]:
    """Serve an application and the operator's endpoints, at one address or at two."""
    listeners = []
    if options.admin is None:
        asgi.router.routes[:0] = admin
    else:
        apart = Starlette(routes=list(admin), middleware=PLAIN_PATHS, exception_handlers=HTTP_PROBLEMS)
        apart.router.redirect_slashes = False
        listeners.append(Listener(apart, options.admin.host, options.admin.port, options.tls))
    listeners.insert(0, Listener(asgi, options.listen.host, options.listen.port, options.tls))
    loop = listeners[0].start()
    for listener in listeners[1:]:
        listener.start()
    log.info(
        "listening", extra={"host": options.listen.host, "port": listeners[0].port, "tls": options.tls is not None}
    )
    try:
        yield Listening(listeners[0].port, lambda: listeners[0].connections, loop)
    finally:
        stop()
        for listener in listeners:
            listener.stop()


def admin_token(store: Store, options: Options, uses: int) -> bytes:
    """The hash of the operator's token. At the first start it and a first join token are written to private files."""
    directory = options.directory
    known = store.note(ADMIN_TOKEN)
    if known is not None and options.new_admin_token:
        fresh = keys.new_token()
        write_atomically(directory / ADMIN_TOKEN, fresh.encode(), private=True)
        store.set_note(ADMIN_TOKEN, keys.token_hash(fresh).hex())
        log.warning("new operator token", extra={"file": str(directory / ADMIN_TOKEN)})
        return keys.token_hash(fresh)
    if known is not None:
        return bytes.fromhex(known)
    admin, join = keys.new_token(), keys.new_token()
    write_atomically(directory / ADMIN_TOKEN, admin.encode(), private=True)
    write_atomically(directory / JOIN_TOKEN, join.encode(), private=True)
    with suppress(Exception):
        store.remove_token(keys.token_hash(join))
    expires = int(time() + 3600 * options.join_hours)
    store.add_token(keys.token_hash(join), uses, "made at the first start", None, expires)
    kept = store.first_note(ADMIN_TOKEN, keys.token_hash(admin).hex())
    if kept != keys.token_hash(admin).hex():  # another replica was first: its tokens are valid
        store.remove_token(keys.token_hash(join))
        for name in (ADMIN_TOKEN, JOIN_TOKEN):
            (directory / name).unlink()
    return bytes.fromhex(kept)


def follow(setup: Setup, fleet: HttpFleet, hub: Hub, store: Store, options: Options, watch: Watcher | None) -> Result:
    """The server loop; each round is committed before anybody is told about it."""
    directory, publish = options.directory, options.publish
    run = RunDir(directory)
    write_atomically(directory / "plan.toml", setup.plan.to_toml().encode())
    start = parked(store)
    rows: list[dict[str, Any]] = store.committed()
    run.write_rows(rows)
    state = start.state if start else None
    hub.history.commit(start.round if start else 0, None)
    if start and publish == "rounds":
        hub.models.release(start.round, start.state.weights)
    spent = None
    if not (start and status_of(setup.plan, rows, setup.goal, setup.algorithm.finished(start.state)) != "stopped"):
        try:
            for event in rounds(setup, fleet, start):
                state = event.state
                if isinstance(event, Round):
                    _commit(event, fleet, hub, store)
                    if publish == "rounds":
                        hub.models.release(event.round, event.state.weights)
                    rows.append(event_row(event))
                    _append_metrics(run, rows, fleet)
                elif event.round == 0:
                    _save_initial(event, fleet, store)
                if watch:
                    watch(event)
        except BudgetSpent as error:
            log.warning("budget spent", extra={"detail": str(error)})
            assert fleet.ledger
            spent = fleet.ledger.entry(len(rows))
    assert state
    if publish != "none":
        hub.models.release(len(rows), state.weights)
    return fleet.retried(lambda: finish(setup, rows, state, fleet.engine, run, spent))


def check_nothing_lost(run: RunDir, rows: list[dict[str, Any]]) -> None:
    """Rounds enter the database before the metrics, so more rounds in the metrics mean that the database lost some."""
    if run.recorded() > len(rows):
        raise StoreError(
            f"the database has {len(rows)} rounds, but {run.metrics_path} has {run.recorded()}: the database lost "
            "rounds that were committed, or is an older copy. Restore the newer one; to repeat those rounds "
            "anyway, move that file away"
        )


def _append_metrics(run: RunDir, rows: list[dict[str, Any]], fleet: HttpFleet) -> None:
    """Append a line. If that fails, rewrite the file: a full disk may have kept half of the line."""
    try:
        run.append(rows[-1])
    except DiskError:
        fleet.retried(lambda: run.write_rows(rows))


def parked(store: Store) -> Start | None:
    found = store.last_state()
    if found is None or found[0] == 0:
        return None
    return Start(found[0], from_tensors(load(found[1])))


def _save_initial(event: Event, fleet: HttpFleet, store: Store) -> None:
    blob, digest = save(to_tensors(event.state)), model_sha256(event.state.weights)
    fleet.retried(lambda: store.initial_state(blob, digest))


def _commit(event: Round, fleet: HttpFleet, hub: Hub, store: Store) -> None:
    """Commit the state, the metrics and who counted in one transaction. Only then may clients drop their updates."""
    blob, digest, counted = save(_contiguous(event.state)), model_sha256(event.state.weights), hub.collecting.counted()

    def write() -> None:
        if store.last_round() < event.round:  # the connection may break between the commit and its answer
            store.commit_round(event.round, fleet.attempt, blob, digest, event_row(event), counted, event.ledger)

    fleet.retried(write)
    fleet.committed(event.round)
    hub.committed(event.round)
    hub.progress.committed(event_row(event))
    log.info("committed", extra={"round": event.round, "clients": event.clients, "test": event.test, "model": digest})


def _contiguous(state: State) -> dict[str, Any]:
    return {name: tensor.contiguous() for name, tensor in to_tensors(state).items()}


def done_answer(result: Result, more: bool) -> DoneAnswer:
    return DoneAnswer(round=result.summary.rounds, model=result.summary.model_sha256, more=more, counted=None)


def say_goodbye(hub: Hub, result: Result, linger_s: float, connections: Callable[[], int]) -> None:
    """Stay until all clients know that the run is over, or for at most `linger_s`.

    A client that was told may fetch the final model next: while it is connected it has a moment to begin.
    """
    hub.polls.finish(done_answer(result, more=False))
    until = monotonic() + linger_s
    while not hub.polls.all_told() and monotonic() < until and not hub.shared.stopping:
        sleep(0.05)
    until = min(until, monotonic() + FETCH_S)
    while connections() and monotonic() < until and not hub.shared.stopping:
        sleep(0.05)
