"""Evaluation over the network: devices judge a model on their holdout, and send sums only.

It is collected like the updates of a round, under a separate attempt number, while the trained round waits to be
committed. Devices that do not answer in time are left out; if too few answer, the whole evaluation is left out.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from secrets import token_bytes
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedavg.codecs import make_codec
from fedavg.errors import FleetError
from fedavg.fleets.http.protocol import sums
from fedavg.fleets.http.protocol.messages import JUDGING, JudgeOffer
from fedavg.fleets.http.protocol.wire import Expected
from fedavg.fleets.http.server.gathering import Total
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.invitations import Invitation
from fedavg.fleets.http.server.rounds import OpenRound, Rules
from fedavg.fleets.http.server.underway import Group
from fedavg.fleets.worker import Evaluated, judged_by_clients, judged_together, judges, unclipped
from fedavg.metrics.spread import OnClients, names_of_sums
from fedavg.setup import Setup
from fedavg.types import Part, Update

if TYPE_CHECKING:
    from fedavg.fleets.http.server.secure import SecureRound

log = logging.getLogger("fedavg.fleet")


class Judging:
    """Asks as many of the devices present as the plan says.

    `totals` collects their answers; it returns None if too few answer. `authority` vouches for the devices in signed
    sessions of secure aggregation, where each phase may take `phase_s`.
    """

    def __init__(
        self,
        setup: Setup,
        hub: Hub,
        rules: Rules,
        totals: Callable[[Invitation], Sequence[Total] | None],
        authority: bytes | None,
        phase_s: float,
    ) -> None:
        self._setup, self._hub, self._rules, self._totals = setup, hub, rules, totals
        self._authority, self._phase_s = authority, phase_s
        self._metrics = setup.task.judged_by
        self._names = names_of_sums(self._metrics)

    def judged(self, weights: Tensor, round: int, attempt: int, able: np.ndarray) -> OnClients | None:
        """The evaluation by those devices that are able to judge; None if too few answer."""
        clients = judges(self._setup, round, able)
        if not clients:
            log.warning("not judged", extra={"round": round, "reason": "no client that holds examples out is there"})
            return None
        invitation = Asking(self._setup, self._hub, self._rules).invitation(clients, round, JUDGING + attempt, weights)
        with self._hub.collecting.aside():
            found = self._masked(invitation) if self._setup.secagg else self._collected(invitation)
        if isinstance(found, OnClients):
            log.info("judged", extra={"round": round, "clients": found.clients})
            return found
        log.warning("not judged", extra={"round": round, "reason": found})
        return None

    def _collected(self, invitation: Invitation) -> OnClients | str:
        totals = self._totals(invitation)
        if totals is None:
            return self._hub.collecting.abandoned_because()
        ((_, _, received),) = totals
        pieces = [Evaluated(self._by_metric(each.metrics)) for each in received]
        named = self._setup.shows_updates and not self._hub.guards.anonymous
        clients = [each.client for each in received if each.client is not None] if named else []
        up, down = sum(each.bytes_up for each in received), invitation.bytes_down
        return judged_by_clients(self._metrics, pieces, up, down, clients)

    def _masked(self, invitation: Invitation) -> OnClients | str:
        """Under secure aggregation: only the sum over all devices is ever seen here."""
        from fedavg.secagg import SecAggError

        opened, (group,) = invitation.round, invitation.groups
        try:
            secure = self._session(opened)
            self._hub.collecting.open(opened, [replace(group, offer=replace(group.offer, session=secure.name))], secure)
            aggregate = self._hub.sessions.unmask() if self._hub.sessions.mask() else None
        except SecAggError as error:
            return f"secure aggregation: {error}"
        if aggregate is None:
            return self._hub.collecting.abandoned_because()
        decoded = self._hub.sessions.encoding.decode(aggregate.ring, len(aggregate.survivors))
        up, more = self._hub.sessions.bytes_sent()
        down = invitation.bytes_down + more
        try:
            return judged_together(self._metrics, unclipped(decoded), decoded.count, sum(up), down)
        except FleetError as error:  # one client must not be able to end the run
            return str(error)

    def _session(self, opened: OpenRound) -> "SecureRound":
        from fedavg.fleets.http.server.secure import SecureRound
        from fedavg.secagg import ServerSession

        assert self._setup.secagg
        terms = self._setup.secagg.terms(
            token_bytes(16), opened.round, opened.model, len(opened.invited), 0, self._names
        )
        return SecureRound(ServerSession(terms, opened.invited, self._authority), self._phase_s)

    def _by_metric(self, named: Mapping[str, float]) -> dict[str, list[float]]:
        return {
            name: [named[f"{name}.{place}"] for place in range(metric.size)] for name, metric in self._metrics.items()
        }


class Asking:
    """How clients are asked to judge a model: every replica makes the same offer."""

    def __init__(self, setup: Setup, hub: Hub, rules: Rules) -> None:
        self._setup, self._hub, self._rules = setup, hub, rules
        self._names = names_of_sums(setup.task.judged_by)

    def invitation(self, clients: Sequence[int], round: int, attempt: int, weights: Tensor) -> Invitation:
        """Make an invitation, and publish the model."""
        (model,) = self._hub.models.publish([Part(list(clients), weights)])
        opened = self._round(clients, round, attempt, model)
        group = Group(frozenset(clients), self._offer(opened, len(weights)), self._expected(opened), self._arrived)
        return Invitation(opened, [group], [1.0], [0], 4 * len(weights) * len(clients))

    def _round(self, clients: Sequence[int], round: int, attempt: int, model: str) -> OpenRound:
        goal = len(clients)
        deadline = monotonic() + self._rules.deadline_s
        return OpenRound(round, attempt, model, frozenset(clients), goal, self._rules.minimum(goal), deadline)

    def _offer(self, opened: OpenRound, numbers: int) -> JudgeOffer:
        return JudgeOffer(
            round=opened.round,
            attempt=opened.attempt,
            model=opened.model,
            numbers=numbers,
            deadline_s=self._rules.deadline_s,
            upload_token=None,
            session=None,
            invited=len(opened.invited),
        )

    def _expected(self, opened: OpenRound) -> Expected:
        """Sums only: each counts once, and no norm bounds them."""
        return Expected(
            plan=self._setup.plan.digest,
            round=opened.round,
            attempt=opened.attempt,
            model=opened.model,
            codec=make_codec("float32"),
            numbers=sums.PARTS * len(self._names),
            max_weight=1.0,
            max_norm=None,
            metrics=frozenset(),
        )

    def _arrived(self, vector: Tensor, weight: float) -> Update:
        """The sums by name; there is no update vector."""
        return Update(
            torch.zeros_like(vector), weight, dict(zip(self._names, sums.joined(vector).tolist(), strict=True))
        )
