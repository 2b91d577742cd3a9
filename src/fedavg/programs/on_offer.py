"""The runs that a replica of a service offers to clients: those that are under way according to the database."""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from threading import RLock

from fedavg.engine.model import model_sha256
from fedavg.errors import FedAvgError
from fedavg.fleets.http.protocol.messages import DoneAnswer
from fedavg.fleets.http.server.floor import OF_RUN, Stand
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.logs import Seldom
from fedavg.fleets.http.server.replicas.member import Member
from fedavg.fleets.http.server.replicas.of_run import OfRun
from fedavg.fleets.http.server.store import StoreError, SubmittedRun
from fedavg.programs.hosting import weights_of
from fedavg.programs.premises import Premises
from fedavg.programs.records import ENDED
from fedavg.programs.shared_run import Place, SharedRun

log = logging.getLogger("fedavg.fleet")


@dataclass
class Offered:
    """A run that is offered here, as it was found in the queue."""

    run: SubmittedRun
    shared: SharedRun


class OnOffer:
    """Thread-safe. `member` is this replica among the others of the service."""

    def __init__(self, premises: Premises, member: Member, place: Place) -> None:
        self._premises, self._hosting, self._runs = premises, premises.hosting, premises.runs
        self._member, self._place, self._url = member, place, ""
        #: Held while what is offered is brought in line with the database.
        self._moving = RLock()
        self._offered: dict[int, Offered] = {}
        #: The run that is led here: its thread puts it away.
        self._led: SubmittedRun | None = None
        self._stopping = False
        self.failures = Seldom(log, "cannot offer a run")

    def start(self, url: str) -> None:
        """Offer what the other replicas offer, from now on: they reach this one at this address.

        A client that they told of the end of the last run may come here next for its model.
        """
        self._url = url
        self._member.start(url)
        for run in self._runs.done()[-1:]:
            try:
                self._premises.reopened(run)
            except FedAvgError as error:
                self.failures.tell(f"run {run.number}: {error}")

    def stop(self) -> None:
        self._stopping = True
        for hub in self.hubs():
            hub.stop()

    def certify(self, certificate: str) -> None:
        """Announce another certificate, PEM, to the other replicas."""
        with self._moving:
            self._place = replace(self._place, certificate=certificate)
            members = [self._member, *(each.shared.member for each in self._offered.values())]
        for member in members:
            member.certify(certificate)

    def hubs(self) -> list[Hub]:
        return [each.shared.hub for each in list(self._offered.values())]

    def committed(self) -> Mapping[int, int]:
        """The last committed round of each run, as the database has it."""
        with self._moving:
            offered = dict(self._offered)
        return {number: each.shared.store.last_round() for number, each in offered.items()}

    def led(self, run: SubmittedRun) -> SharedRun | None:
        """Offer a run in order to lead it, until `led_no_more`; None if it was changed meanwhile."""
        with self._moving:
            self.align()
            if run.number not in self._offered and not self._stopping:
                self._put_up(run)
            offered = self._offered.get(run.number)
            if offered is None or offered.run.plan_digest != run.plan_digest:
                return None
            self._led = run
            self.align()  # once more: from now on, an operator's change stops the run
        return offered.shared

    def led_no_more(self) -> None:
        with self._moving:
            self._led = None

    def align(self) -> None:
        """Offer what is under way, and nothing else. A run that is led here is only told to stop."""
        with self._moving:
            if self._stopping:
                return
            under_way = {run.number: run for run in self._runs.under_way()}
            for number, each in list(self._offered.items()):
                now = under_way.get(number)
                if now is not None and now.plan_digest == each.run.plan_digest and not each.shared.hub.shared.stopping:
                    continue
                if self._led is not None and self._led.number == number:
                    each.shared.hub.stop()
                else:
                    self._put_away(number)
            for run in under_way.values():
                if run.number not in self._offered:
                    self._try_to_put_up(run)

    def _try_to_put_up(self, run: SubmittedRun) -> None:
        """Offer a run; if this replica cannot, it still does the rest."""
        try:
            self._put_up(run)
        except FedAvgError as error:
            if isinstance(error, StoreError) and error.retryable:
                raise
            self.failures.tell(f"run {run.number}: {error}")

    def _put_up(self, run: SubmittedRun) -> None:
        """Offer a run, once its leader has taken its plan over."""
        plan = self._hosting.plan(run.plan_toml)
        options, data, setup = self._hosting.housed(plan, run.number)
        content = self._runs.model(run.number)
        with ExitStack() as held:
            rounds = held.enter_context(self._hosting.rounds(run.number))
            taken = rounds.run()
            if taken is None or taken.plan_digest != run.plan_digest:
                return
            shared = SharedRun(
                setup, data, options, rounds, self._place,
                lambda claims: self._premises.hub(options.rules, claims), self._premises.requests, ENDED,
                f"{OF_RUN}{run.number}", None if content is None else weights_of(setup, content),
            )  # fmt: skip
            held.callback(shared.close)
            held.callback(shared.hub.stop)  # what is still on its way to this run is refused
            app = self._premises.app(run.number, plan, shared.hub, rounds, OfRun(self._member, shared.member))
            app.asgi.router.routes.extend(shared.peer_routes(app.answered))
            shared.member.start(self._url)
            self._premises.floor.put_up(Stand(run.number, app, str(plan.task), held.pop_all()))
        self._offered[run.number] = Offered(run, shared)

    def _put_away(self, number: int) -> None:
        """Offer a run no more; if it is over, its clients are told so first."""
        shared, run = self._offered[number].shared, self._runs.find(number)
        last = shared.last() if run is not None and run.state == "done" else None
        del self._offered[number]
        if last is None:
            self._premises.floor.take_down(number)
            return
        shared.hub.history.commit(last.round, None)
        digest = model_sha256(last.state.weights)
        shared.hub.polls.finish(DoneAnswer(round=last.round, model=digest, more=True, counted=None))
        self._premises.floor.end(number)
