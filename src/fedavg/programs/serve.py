"""A server from start to end: listen, train by rounds over the network, commit each to the database, say goodbye.

Everything that must last is in the database when a round is committed; a server that is killed at any moment goes on
from there with the round that was under way.
"""

import gc
import logging
import signal
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, Final

from safetensors.torch import load, save
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from fedavg.cohorts import cohort_size
from fedavg.engine.model import model_sha256
from fedavg.errors import DiskError, PlanError
from fedavg.files import write_atomically
from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.messages import DoneAnswer
from fedavg.fleets.http.server.admin import Admin
from fedavg.fleets.http.server.app import FleetApp
from fedavg.fleets.http.server.conduct import FIRST_REST
from fedavg.fleets.http.server.fleet import HttpFleet
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.listener import Listener
from fedavg.fleets.http.server.refusals import HTTP_PROBLEMS, PLAIN_PATHS
from fedavg.fleets.http.server.rounds import Rules
from fedavg.fleets.http.server.store import Store, StoreError
from fedavg.plan import Plan
from fedavg.privacy.served import BudgetSpent, ServedLedger
from fedavg.runlog.checkpoint import from_tensors, to_tensors
from fedavg.runlog.rundir import RunDir
from fedavg.runlog.summary import status_of
from fedavg.runner import Result, finish
from fedavg.samplers import make_sampler
from fedavg.server import Event, Round, Start, Watcher, event_row, rounds
from fedavg.setup import Setup, pinned, population_of, resolve, resolve_data, served
from fedavg.types import FederatedData, State

log = logging.getLogger("fedavg.fleet")

ADMIN_TOKEN: Final = "admin-token"
JOIN_TOKEN: Final = "join-token"
LEDGER: Final = "ledger.jsonl"
#: The first join token is good for a week, and where the plan does not say K, for so many clients.
JOIN_HOURS: Final = 7 * 24.0
MOST_HOURS: Final = 87_840
JOIN_USES: Final = 1000


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        return self.host in ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Options:
    """How to serve; none of it changes what is learned when all invited clients answer."""

    listen: Address
    directory: Path
    #: A database URL; without one, an SQLite file in the directory.
    database: str | None = None
    tls: ssl.SSLContext | None = None
    #: Where the operator's endpoints are; without it, beside the clients'.
    admin: Address | None = None
    rules: Rules = field(default_factory=Rules)
    guards: Guards = field(default_factory=Guards)
    #: The public key (raw Ed25519) of the authority that vouches for devices, if the plan's sessions are signed.
    authority: bytes | None = None
    #: Clients that must be there before a round begins; without it, a cohort.
    minimum: int | None = None
    #: How many clients the first join token is for (without it, K of the plan), and for how many hours.
    join_uses: int | None = None
    join_hours: float = JOIN_HOURS
    #: Seconds that the server stays after the last round, to tell clients that it was the last.
    linger_s: float = 30.0


def serve(
    plan: Plan, options: Options, watch: Watcher | None = None, ready: Callable[[int], None] | None = None
) -> Result:
    """Train the plan on the clients that join; goes on where a server with the same database left off.

    `ready` is called with the port once clients can connect.
    """
    check_options(plan, options)
    plan = pinned(plan)
    hub = Hub(options.guards, FIRST_REST * options.rules.deadline_s)
    data = resolve_data(plan)
    setup = resolve_served(plan, data, options.rules)
    check_minimum(setup, options.minimum)
    options.directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(options.database or options.directory / "fleet.db"))
        store.acquire(f"fedavg serve {options.listen.host}:{options.listen.port}")
        store.save_run(plan.to_toml(), plan.digest, "devices")
        check_nothing_lost(RunDir(options.directory), store.committed())  # before anything is written or listens
        hub.know(store.clients())
        ledger = ledger_of(setup, store, options.directory)
        fleet = HttpFleet(
            population_of(data), data.test, hub, store, options.rules, options.minimum, options.authority, ledger
        )
        app = FleetApp(plan, hub, store)
        stack.callback(app.close)
        stack.enter_context(stopped_by_signals(hub))
        port = stack.enter_context(listening(app, plan, hub, store, options))
        gc.collect()
        gc.freeze()  # what is here now stays to the end: clients need not wait while it is searched for garbage
        if ready:
            ready(port)
        result = follow(setup, fleet, hub, store, options.directory, watch)
        say_goodbye(hub, result, options.linger_s)
        return result


def check_options(plan: Plan, options: Options) -> None:
    """Refuses what can not be served, or would have no effect."""
    _check_plan(plan)
    _check_plain(options)
    _check_guards(plan, options.guards)
    _check_times(options)
    _check_authority(plan, options)


def resolve_served(plan: Plan, data: FederatedData, rules: Rules) -> Setup:
    """The plan for the clients that will come, as many as its data has; of that the server keeps the test set."""
    clients = population_of(data)
    setup = served(resolve(plan, clients, data.test))
    if setup.budget and clients.count != plan.clients:
        raise PlanError(
            f"clients: got {plan.clients}, but data '{data.name}' has {clients.count}; a private run needs the same "
            "number: its noise and its mean are made for K clients"
        )
    if setup.algorithm.asynchronous and rules.over_selection != 1:
        raise PlanError(
            f"--over-selection: got {rules.over_selection:g}, but with '{setup.algorithm.name}' clients are always at "
            "work, and its buffer says how many updates make a step; expected 1, or a larger C for more at work"
        )
    if setup.secagg:
        setup.secagg.check(rules.invited(cohort_size(plan.C, clients)))
    return setup


def ledger_of(setup: Setup, store: Store, directory: Path) -> ServedLedger | None:
    """What the run has cost so far, from the record of who took part."""
    if setup.budget is None:
        return None
    return ServedLedger(setup.budget, setup.plan.dp_epsilon, directory / LEDGER, store.attempts())


def check_minimum(setup: Setup, minimum: int | None) -> None:
    least = setup.secagg.shares.least if setup.secagg and setup.secagg.shares else 0
    most = setup.plan.clients
    if minimum is not None and most is not None and minimum > most:
        raise PlanError(f"--min-clients: got {minimum}; expected at most {most}: the plan has no more clients")
    if minimum is not None and minimum < least:
        raise PlanError(
            f"--min-clients: got {minimum}; expected at least {least}: so many together carry the noise of the plan"
        )


def _check_plan(plan: Plan) -> None:
    if plan.attack is not None:
        raise PlanError(
            f"attack: got '{plan.attack}', and the clients of a server are real: nobody simulates their lies; expected "
            "none"
        )
    for name, part in plan.objects():
        raise PlanError(
            f"{name}: got {part!r}, an object that has no text form, and devices know a plan only as text; install its "
            "code on the server and the devices, and name it: 'my_package.module:Name'"
        )
    sampler = make_sampler(plan.sampling)
    if sampler.needs_everyone or sampler.needs_losses:
        raise PlanError(
            f"sampling: got '{sampler}'; clients that come and go can not be sampled so: expected 'fixed', 'weighted', "
            "'turns', or one that needs neither everyone nor losses"
        )
    for name in ("world", "changes"):
        if getattr(plan, name) is not None:
            raise PlanError(
                f"{name}: got '{getattr(plan, name)}'; real devices come and go, and their data changes, by "
                "themselves: expected none. When a round ends is for --deadline, --over-selection and --quorum to say"
            )
    if plan.eval_train:
        raise PlanError("eval_train: the training data is on the clients and never leaves them; expected false")


def _check_times(options: Options) -> None:
    if not 0 < options.join_hours <= MOST_HOURS:
        raise PlanError(f"--join-hours: got {options.join_hours:g}; expected hours above 0, at most {MOST_HOURS:,}")
    if not options.linger_s >= 0:
        raise PlanError(f"--linger: got {options.linger_s:g}; expected seconds from 0")


def _check_guards(plan: Plan, guards: Guards) -> None:
    if plan.secagg != "none" and guards.anonymous:
        raise PlanError(
            "--anonymous: under secure aggregation updates come masked, in sessions that clients sign; expected none. "
            "Nobody sees a single update there, whose it is or not"
        )
    if plan.secagg != "none" and guards.max_norm is not None:
        raise PlanError(
            "--norm-bound: nobody can see the norm of an update under secure aggregation; expected none. What bounds "
            "updates there is the plan's secagg, CLIP for each number and CAP for n_k"
        )
    usual = Guards()
    for name in ("max_weight", "times_median") if plan.secagg != "none" else ():
        if (got := getattr(guards, name)) != getattr(usual, name):
            raise PlanError(
                f"--{name.replace('_', '-')}: got {got:g}, but nobody can see a weight under secure aggregation; "
                "expected none. What bounds weights there is CAP of the plan's secagg"
            )


def _check_authority(plan: Plan, options: Options) -> None:
    masking = None
    if plan.secagg != "none":
        from fedavg.secagg.options import make_masking

        masking = make_masking(plan.secagg)
    signed = masking is not None and masking.signed
    if signed and options.authority is None:
        raise PlanError("secagg: sessions are signed; expected --authority with the public key that devices pin")
    if options.authority is not None and not signed:
        raise PlanError("--authority is for signed sessions; expected secagg = 'complete:CLIP:CAP:signed=true'")


def _check_plain(options: Options) -> None:
    for address in (options.listen, options.admin):
        if options.tls is None and address and not address.loopback:
            raise PlanError(
                f"plain HTTP on {address.host}: expected TLS (--cert and --key; 'fedavg certs' makes them for trying "
                "out). Without it only loopback addresses are served"
            )


@contextmanager
def listening(
    app: FleetApp, plan: Plan, hub: Hub, store: Store, options: Options, more: Sequence[BaseRoute] = ()
) -> Iterator[int]:
    """Serve clients, and the operator, until the end; and what `more` there is."""
    app.asgi.router.routes.extend(more)
    admin = Admin(app, hub, store, _admin_token(store, plan, options), hub.stop)
    listeners = []
    if options.admin is None:
        app.asgi.router.routes.extend(admin.routes)
    else:
        apart = Starlette(routes=admin.routes, middleware=PLAIN_PATHS, exception_handlers=HTTP_PROBLEMS)
        apart.router.redirect_slashes = False
        listeners.append(Listener(apart, options.admin.host, options.admin.port, options.tls))
    listeners.insert(0, Listener(app.asgi, options.listen.host, options.listen.port, options.tls))
    app.run_in(listeners[0].start())
    for listener in listeners[1:]:
        listener.start()
    log.info(
        "listening", extra={"host": options.listen.host, "port": listeners[0].port, "tls": options.tls is not None}
    )
    try:
        yield listeners[0].port
    finally:
        hub.stop()
        for listener in listeners:
            listener.stop()


def _admin_token(store: Store, plan: Plan, options: Options) -> bytes:
    """The hash of the operator's token. At the first start it and a first join token are written to private files."""
    directory = options.directory
    known = store.note(ADMIN_TOKEN)
    if known is not None:
        return bytes.fromhex(known)
    admin, join = keys.new_token(), keys.new_token()
    write_atomically(directory / ADMIN_TOKEN, admin.encode(), private=True)
    write_atomically(directory / JOIN_TOKEN, join.encode(), private=True)
    with suppress(Exception):
        store.remove_token(keys.token_hash(join))
    uses = options.join_uses or plan.clients or JOIN_USES
    expires = int(time() + 3600 * options.join_hours)
    store.add_token(keys.token_hash(join), uses, "made at the first start", None, expires)
    kept = store.first_note(ADMIN_TOKEN, keys.token_hash(admin).hex())
    if kept != keys.token_hash(admin).hex():  # another replica was first: its tokens are the ones
        store.remove_token(keys.token_hash(join))
        for name in (ADMIN_TOKEN, JOIN_TOKEN):
            (directory / name).unlink()
    return bytes.fromhex(kept)


@contextmanager
def stopped_by_signals(hub: Hub) -> Iterator[None]:
    """SIGTERM and Ctrl-C park the round under way and end the server in good order, if it is the program itself."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only a program's main thread is told of signals; what runs a server elsewhere stops it by the hub
        return
    previous = {number: signal.signal(number, lambda *_: hub.stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def follow(setup: Setup, fleet: HttpFleet, hub: Hub, store: Store, directory: Path, watch: Watcher | None) -> Result:
    """The server loop, with each round committed before anybody hears of it."""
    run = RunDir(directory)
    write_atomically(directory / "plan.toml", setup.plan.to_toml().encode())
    start = parked(store)
    rows: list[dict[str, Any]] = store.committed()
    run.write_rows(rows)
    state = start.state if start else None
    hub.history.commit(start.round if start else 0, None)
    spent = None
    if not (start and status_of(setup.plan, rows, setup.goal, setup.algorithm.finished(start.state)) != "stopped"):
        try:
            for event in rounds(setup, fleet, start):
                state = event.state
                if isinstance(event, Round):
                    _commit(event, fleet, hub, store)
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
    return fleet.retried(lambda: finish(setup, rows, state, fleet.engine, run, spent))


def check_nothing_lost(run: RunDir, rows: list[dict[str, Any]]) -> None:
    """A round is in the database before it is in the metrics: more of them there means that the database lost some."""
    if run.recorded() > len(rows):
        raise StoreError(
            f"the database has {len(rows)} rounds, but {run.metrics_path} has {run.recorded()}: the database lost "
            "rounds that were committed, or is an older copy. Restore the newer one; to do those rounds again all the "
            "same, move that file away"
        )


def _append_metrics(run: RunDir, rows: list[dict[str, Any]], fleet: HttpFleet) -> None:
    """A line more; a disk that was full may have kept half of it, so that the file is then written anew."""
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
    """One transaction: the state, the metrics, who counted. Only then clients may let go of their updates."""
    blob, digest, counted = save(_contiguous(event.state)), model_sha256(event.state.weights), hub.collecting.counted()

    def write() -> None:
        if store.last_round() < event.round:  # a connection may be lost after the commit and before its answer
            store.commit_round(event.round, fleet.attempt, blob, digest, event_row(event), counted, event.ledger)

    fleet.retried(write)
    fleet.committed(event.round)
    hub.committed(event.round)
    log.info("committed", extra={"round": event.round, "clients": event.clients, "test": event.test, "model": digest})


def _contiguous(state: State) -> dict[str, Any]:
    return {name: tensor.contiguous() for name, tensor in to_tensors(state).items()}


def say_goodbye(hub: Hub, result: Result, linger_s: float) -> None:
    """Stay until everyone knows that it is over, or for as long as was asked."""
    hub.polls.finish(DoneAnswer(round=result.summary.rounds, model=result.summary.model_sha256, counted=None))
    until = monotonic() + linger_s
    while not hub.polls.all_told() and monotonic() < until and not hub.shared.stopping:
        sleep(0.05)
