"""A service of several processes (docs/replicas.md): each answers all requests, and one leads the runs, in turn.

What is to be served is in the database of the service: a run that is `running` there is offered by every replica, under
the plan that its leader has taken over in the run's own database. One replica leads the service, and with it every run:
only the leader begins and ends runs, and each step checks the leader's term. Operators' requests to any replica change
the database, and the leader acts on that.
"""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from threading import Condition, Thread
from typing import Final, final

from starlette.routing import BaseRoute

from fedavg.engine.threads import one_thread
from fedavg.errors import FedAvgError, PlanError
from fedavg.fleets.http.server.fleet import Stopped
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.logs import Seldom
from fedavg.fleets.http.server.metrics import Requests
from fedavg.fleets.http.server.replicas.leader import Leader
from fedavg.fleets.http.server.replicas.member import Member, SharedClaims
from fedavg.fleets.http.server.replicas.peers import OfReplica, PeerEndpoints
from fedavg.fleets.http.server.signatures import Elsewhere
from fedavg.fleets.http.server.store import Deposed, Store, StoreError, SubmittedRun
from fedavg.fleets.http.server.store.heartbeats import Heartbeats
from fedavg.fleets.http.server.store.leadership import Leadership
from fedavg.fleets.http.server.store.together import SharedView, Together
from fedavg.programs.desk import NowServed
from fedavg.programs.hosting import Hosting, check_restored, take_over
from fedavg.programs.on_offer import OnOffer
from fedavg.programs.premises import Premises
from fedavg.programs.records import RunRecords
from fedavg.programs.replica import TRY_S, check_place, check_shareable, name_of
from fedavg.programs.servable import Options
from fedavg.programs.service import RETRY_S, check_no_single_run, open_to_all, what_came_of
from fedavg.programs.shared_run import Place, SharedRun
from fedavg.programs.signals import heeding_signals, reload_certificates

log = logging.getLogger("fedavg.fleet")

#: Seconds between looks at the queue while nothing is known to have changed.
QUEUE_S: Final = 1.0
#: The states of a run that a leader may begin or end.
UNDER_WAY: Final = ("queued", "running")


def serve_runs_together(
    options: Options, allowed: Sequence[str], place: Place, ready: Callable[[int], None] | None = None
) -> None:
    """Be one of the replicas of a service, until the operator stops this one."""
    check_place(options, place)
    _check_service(options)
    options.directory.mkdir(parents=True, exist_ok=True)
    assert options.database
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(options.database))
        leadership = Leadership(store.connections, name_of(options))
        stack.callback(leadership.close)
        leadership.attend()
        check_no_single_run(store)
        hosting = Hosting(options, tuple(allowed), check_shareable)
        hosting.bring_up_to_date()
        service = ServiceReplica(store, hosting, place, leadership)
        stack.callback(service.close)
        reload = lambda: reload_certificates(options.reload, service.certify)  # noqa: E731
        stack.enter_context(heeding_signals(service.stop, reload))
        listen = stack.enter_context(open_to_all(service.premises, service, service.stop, service.peer_routes))
        service.start(place.url or f"{'https' if options.tls else 'http'}://{options.listen.host}:{listen.port}")
        gc.collect()
        gc.freeze()
        if ready:
            ready(listen.port)
        service.serve()


def _check_service(options: Options) -> None:
    if options.side_by_side > 1:
        raise PlanError(
            f"--side-by-side: got {options.side_by_side} with --replica: which client is at which of several runs is "
            "in the memory of one process; expected 1 (runs one after another), or no --replica"
        )
    if options.guards.anonymous:
        raise PlanError(
            "--replica: got --anonymous: upload tokens are in the memory of the process that gave them; expected none, "
            "or a service that is alone"
        )


@final
class ServiceReplica(NowServed):
    """Thread-safe: the handlers' threads, the main loop and the thread of the run that is led call it."""

    def __init__(self, store: Store, hosting: Hosting, place: Place, leadership: Leadership) -> None:
        self._store, self._hosting, self._place, self._leadership = store, hosting, place, leadership
        self._together = Together(store.connections)
        #: Notified when there may be something to do.
        self._changed = Condition()
        self._news = self._stopping = False
        self.premises = Premises(store, hosting, self._joining)
        self._runs, self._front = self.premises.runs, self.premises.floor.front.hub
        self._offers = OnOffer(self.premises, self._member, place)
        self._records = RunRecords(self._runs, hosting)
        self._not_leading = Seldom(log, "cannot lead")

    def _joining(self, front: Hub, requests: Requests) -> Elsewhere:
        """This replica among the others of the service: clients, signatures, and which runs there are."""
        self._member = Member(
            self._together, SharedClaims(self._together), front, self._place.certificate, self._place.shown,
            lambda _: None, Heartbeats(self._store.connections), requests, self._noticed,
        )  # fmt: skip
        return self._member

    @property
    def peer_routes(self) -> Sequence[BaseRoute]:
        """What other replicas ask this one, apart from the runs."""
        guard = OfReplica(self._member.key, lambda: self._member.replica, self._member.known)
        answered = self.premises.floor.front.answered
        return PeerEndpoints(guard, answered, self._front.presence.words, self._member.parts).routes

    def start(self, url: str) -> None:
        self._offers.start(url)

    def certify(self, certificate: str) -> None:
        self._offers.certify(certificate)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._front.stop()
        self._offers.stop()

    def close(self) -> None:
        self._member.close()
        self._member.peers.close()
        self.premises.close()

    def _noticed(self, view: SharedView) -> None:
        """Something has changed in the database of the service."""
        if view.clients:
            self.premises.floor.know(view.clients)
        self._offers.align()
        self.look_again()

    # The queue

    def serve(self) -> None:
        """Lead or follow until this replica is stopped."""
        with one_thread():  # each run asks for this too; set here, no run undoes it while others continue
            while not self._stopping:
                try:
                    self._records.write_missing()
                    term = self._leadership.attempt(self._member.replica)
                    if term is not None:
                        self._lead(term)
                except Deposed as error:
                    log.warning("leads no more", extra={"detail": str(error)})
                except StoreError as error:
                    if not error.retryable:
                        raise
                    self._not_leading.tell(error)
                self.premises.floor.balance()
                self._pause(TRY_S)

    def _lead(self, term: int) -> None:
        """Begin the runs of the queue, one after another, as long as this replica leads."""
        log.info("leading", extra={"term": term, "replica": self._member.replica})
        self._front.shared.deposed = False
        leader = Leader(self._front, self._together, self._member, self._member.peers, self._leadership)
        self._member.lead(term)
        leader.start()
        thread: Thread | None = None
        try:
            while not self._front.shared.over:
                if thread is None or not thread.is_alive():
                    thread = self._begun(term)
                self._records.write_missing()
                self.premises.floor.balance()
                self._pause(QUEUE_S)
            if not self._stopping:
                raise Deposed("another replica leads now")
        finally:
            if thread is not None and thread.is_alive():
                for hub in self._offers.hubs():
                    hub.shared.depose()
                thread.join()
            leader.close()
            self._leadership.resign()
            self._front.shared.deposed = False
            self._member.lead(None)

    def _begun(self, term: int) -> Thread | None:
        """The thread of the run that is next, if there is one."""
        run = next(iter(self._runs.next()), None)
        if run is None:
            return None
        thread = Thread(target=self._lead_one, args=(run, term), name=f"run {run.number}", daemon=True)
        thread.start()
        return thread

    def _pause(self, seconds: float) -> None:
        """Wait until something may be to do, at most for so long."""
        with self._changed:
            if not self._news and not self._stopping:
                self._changed.wait(seconds)
            self._news = False

    def _lead_one(self, run: SubmittedRun, term: int) -> None:
        """Lead one run from start to end, in its own thread."""
        number = run.number
        try:
            state, detail = self._ended(run, term)
            if state and self._runs.set_state(
                number, state, detail, only_from=UNDER_WAY, plan_digest=run.plan_digest, term=term
            ):
                log.info("run ends", extra={"run": number, "state": state, "detail": detail})
        except Deposed as error:
            log.warning("leads no more", extra={"run": number, "detail": str(error)})
            self._front.shared.pause(TRY_S)
        except StoreError as error:  # the run is still under way: it is begun again
            log.error("cannot go on; trying again", extra={"run": number, "detail": str(error)})
            self._front.shared.pause(RETRY_S)
        finally:
            self._offers.led_no_more()
            self._catch_up()
            self.look_again()

    def _ended(self, run: SubmittedRun, term: int) -> tuple[str, str]:
        """Lead a run; returns its state at the end, and why. No state if operators changed it, or the replica stops."""
        try:
            shared = self._taken_over(run, term)
            return ("done", what_came_of(shared.lead(self))) if shared else ("", "")
        except Stopped:
            return "", ""
        except FedAvgError as error:
            if isinstance(error, Deposed) or (isinstance(error, StoreError) and error.retryable):
                raise
            return "failed", str(error)
        except Exception as error:  # from a task's own code: it ends its run, not the service
            log.exception("run failed", extra={"run": run.number})
            return "failed", f"{type(error).__name__}: {error}"

    def _taken_over(self, run: SubmittedRun, term: int) -> SharedRun | None:
        """Take over a run as its leader; None if it was changed meanwhile.

        Its plan is in its own database before any replica offers it, and no replica offers it under another one.
        """
        plan = self._hosting.plan(run.plan_toml)
        _, _, setup = self._hosting.resolved(plan)
        with self._hosting.rounds(run.number) as rounds:
            rounds.begin_term(term)
            check_restored(setup, rounds)
            take_over(rounds, plan, run)
        if not self._runs.set_state(run.number, "running", only_from=UNDER_WAY, plan_digest=run.plan_digest, term=term):
            return None
        log.info("run begins", extra={"run": run.number, "plan": run.plan_digest})
        shared = self._offers.led(run)
        if shared is not None:
            shared.store.begin_term(term)
        return shared

    def holds(self) -> bool:
        """Whether this replica still leads the service, and with it the run."""
        return not self._front.shared.deposed

    def _catch_up(self) -> None:
        """See at once what this replica has changed. Without the database, it is seen when that is back."""
        try:
            self._member.look()
        except StoreError as error:
            self._offers.failures.tell(error)

    # What operators ask, in threads of the handlers

    def committed(self) -> Mapping[int, int]:
        return self._offers.committed()

    def told_to_end(self, number: int, state: str) -> bool:
        if state != "running" and not self._runs.set_state(number, state, only_from=("running",)):
            return False
        self._catch_up()
        return True

    def offer_no_more(self, number: int) -> None:
        self.premises.floor.take_down(number)

    def look_again(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify_all()
