"""What the clients of a round are asked for: the offer to each group, and what they may send back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from time import monotonic
from typing import Final

from fedavg.fleets.attendance import Seen, see
from fedavg.fleets.http.protocol.messages import METRICS, WorkOffer
from fedavg.fleets.http.protocol.wire import Expected
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.offered import OfferedModels
from fedavg.fleets.http.server.rounds import OpenRound, Rules
from fedavg.fleets.http.server.underway import Group
from fedavg.optimizers import make_optimizer
from fedavg.setup import Setup
from fedavg.types import Part, Update, Work

#: A client's loss may be at most this many times the untrained model's loss (plus one).
WORST_LOSS: Final = 1000.0


@dataclass(frozen=True)
class Invitation:
    """A round on offer: the model that each group starts from, what its sum counts for, the bytes to fetch."""

    round: OpenRound
    groups: Sequence[Group]
    scales: Sequence[float]
    #: How many rounds ago each group's model was the newest.
    staleness: Sequence[int]
    bytes_down: int


class Invitations:
    """Makes the invitations of a run.

    `size` is the number of weights; `untrained` is the loss before the first round, infinite if unknown.
    """

    def __init__(
        self, setup: Setup, models: OfferedModels, guards: Guards, rules: Rules, size: int, untrained: float
    ) -> None:
        self._setup, self._models, self._guards, self._rules, self._size = setup, models, guards, rules, size
        self._optimizer = make_optimizer(setup.plan.optimizer)
        self._worst_loss = WORST_LOSS * (1 + abs(untrained)) if isfinite(untrained) else METRICS.value.high

    def new(self, parts: Sequence[Part], work: Work, attempt: int) -> Invitation:
        """Make an invitation, and publish the models of all parts."""
        models = self._models.publish(parts)
        invited = frozenset(k for part in parts for k in part.cohort)
        goal = self._rules.goal(len(invited))
        deadline = monotonic() + self._rules.deadline_s
        enough, least = self._rules.enough(goal), self._rules.minimum(goal)
        round = OpenRound(work.round, attempt, models[0], invited, enough, least, deadline)
        groups = [
            Group(
                frozenset(part.cohort),
                self._offer(work, attempt, model, part, len(invited)),
                self._expected(work, attempt, model),
                lambda vector, weight: self._setup.arrived(vector, weight, work),
                lambda examples: self._metric_bounds(work, examples),
                self._see,
                self._setup.single_updates,
            )
            for part, model in zip(parts, models, strict=True)
        ]
        bytes_down = sum(4 * len(part.shared) * len(part.cohort) for part in parts)
        scales, staleness = [part.scale for part in parts], [part.staleness for part in parts]
        return Invitation(round, groups, scales, staleness, bytes_down)

    def _see(self, update: Update) -> Seen | None:
        shown = self._setup.shows_updates and not self._guards.anonymous
        return see(update, self._setup.plan.seed) if shown else None

    def _offer(self, work: Work, attempt: int, model: str, part: Part, invited: int) -> WorkOffer:
        return WorkOffer(
            round=work.round,
            attempt=attempt,
            model=model,
            numbers=len(part.shared),
            deadline_s=self._rules.deadline_s,
            epochs=work.epochs,
            batch=work.batch if isfinite(work.batch) else None,
            lr=work.lr,
            settings=dict(work.settings),
            upload_token=None,
            session=None,
            invited=invited,
            changes=len(part.frames),
            counted=None,
        )

    def _metric_bounds(self, work: Work, examples: int) -> Mapping[str, tuple[float, float]]:
        """Bounds on the metrics that a client may report: a loss far above the untrained model's is not credible."""
        loss = {"train_loss": (-self._worst_loss, self._worst_loss)}
        return {**loss, **self._setup.algorithm.metric_bounds(work, examples, self._optimizer)}

    def _expected(self, work: Work, attempt: int, model: str) -> Expected:
        return Expected(
            plan=self._setup.plan.digest,
            round=work.round,
            attempt=attempt,
            model=model,
            codec=self._setup.codec,
            numbers=self._setup.update_size(self._size),
            max_weight=self._guards.max_weight,
            max_norm=self._guards.max_norm,
            metrics=self._setup.metrics,
        )
