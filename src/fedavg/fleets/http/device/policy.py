"""What this device's owner requires of any server. A plan or an offer that gives less, or asks for more, is declined.

The plan and every offer come from the server: the device trusts nothing in them beyond what its own task, its own copy
of the plan and its owner's policy imply. A reason is one of `messages.REPORTS`: it is sent to the operator.
"""

import logging
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

from fedavg.dp.accounting import EveryRound, spending
from fedavg.errors import FleetError
from fedavg.fleets.http.protocol.messages import WorkOffer
from fedavg.plan import Plan
from fedavg.setup import Setup
from fedavg.stages.stage import Stage

log = logging.getLogger("fedavg.device")

#: No fleet has more clients: numbers are below this.
MOST_CLIENTS: Final = 2**20
#: The longest wait, in seconds, that a server may ask of a device; longer waits are cut.
LONGEST_WAIT_S: Final = 3600.0
#: The delta of `require_dp` and of a device's lifetime budget. It is the device's own, since a server that chose delta
#: could reach any epsilon.
DELTA: Final = 1e-5


class Declined(FleetError):
    """The device declines to take part; `reason` is for programs."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class OutOfTime(FleetError):
    """The deadline of an offer came before its work was done."""

    reason: Final = "out-of-time"


class Ended(FleetError):
    """The device was told to stop before its work was done."""

    reason: Final = "stopped"


class NoModel(FleetError):
    """The model of an offer cannot be obtained."""

    reason: Final = "no-model"


@dataclass(frozen=True)
class Policy:
    """What the device's owner requires of servers; by default only what any device needs.

    >>> from fedavg import Policy
    >>> Policy(require_secagg=True, min_cohort=20).max_epochs is None
    True
    """

    require_secagg: bool = False
    #: The fewest clients whose sum the device's update may be part of.
    min_cohort: int = 0
    #: The most privacy that all rounds of a plan may cost, counting only noise that the devices add.
    require_dp: float | None = None
    max_epochs: int | None = None
    max_rounds_per_day: int | None = None

    def __post_init__(self) -> None:
        if self.min_cohort and not self.require_secagg:
            raise FleetError(
                "--min-cohort: the server sees each update without secure aggregation; add --require-secagg"
            )
        if self.require_dp is not None and not 0 < self.require_dp < inf:
            raise FleetError(f"--require-dp: got {self.require_dp}; expected a finite number above 0")


def check_plan(policy: Policy, setup: Setup, pinned: bool) -> None:
    """Refuse a plan that violates the owner's policy. `pinned`: the owner has named an authority."""
    if policy.require_secagg and setup.secagg is None:
        raise Declined("no-secagg", "the plan has no secure aggregation; this device requires it (--require-secagg)")
    signed = setup.secagg is not None and setup.secagg.signed
    if pinned and not signed:
        raise Declined("unsigned-session", "this device pins an --authority; the plan has no signed sessions")
    if signed and not pinned:
        raise Declined("no-authority", "the plan's sessions are signed; give this device --authority and a voucher")
    _check_privacy(policy, setup, signed)
    if not signed and policy.min_cohort:
        log.warning("peers are not vouched for", extra={"detail": "a lying server can invent them; use --authority"})


def check_offer(policy: Policy, setup: Setup, numbers: int, offer: WorkOffer) -> None:
    """Refuse an offer beyond the plan, the device's own task (a model of `numbers` numbers) or the policy."""
    plan = setup.plan
    if offer.round > plan.rounds:
        raise Declined("bad-offer", f"round {offer.round} is offered; the plan has {plan.rounds}")
    if offer.numbers != numbers:
        raise Declined("bad-offer", f"a model of {offer.numbers} numbers is offered; the task here has {numbers}")
    _check_work(plan, offer)
    if (offer.session is None) != (setup.secagg is None):
        raise Declined("bad-offer", "the offer and the plan do not agree on secure aggregation")
    if not 1 <= offer.invited <= (plan.clients or MOST_CLIENTS):
        raise Declined("bad-offer", f"{offer.invited} clients are said to be invited; the plan has {plan.clients}")
    if not all(isfinite(number) for number in offer.settings.values()):
        raise Declined("bad-offer", "a number of the offer is not finite")
    if policy.max_epochs is not None and offer.epochs > policy.max_epochs:
        raise Declined("many-epochs", f"{offer.epochs} epochs are asked for; this device allows {policy.max_epochs}")
    if offer.invited < policy.min_cohort:
        raise Declined("small-cohort", f"{offer.invited} clients are invited; this device requires {policy.min_cohort}")


def _check_work(plan: Plan, offer: WorkOffer) -> None:
    """A server free to choose batches and rates would choose those that reveal the most about the data."""
    work, batch = plan.work(offer.round), inf if offer.batch is None else offer.batch
    for good, name, asked, planned in (
        (offer.epochs <= work.epochs, "epochs", offer.epochs, work.epochs),
        (batch == work.batch, "batch", batch, work.batch),
        (offer.lr == work.lr, "lr", offer.lr, work.lr),
    ):
        if not good:
            raise Declined("bad-offer", f"{name} {asked} is asked for; the plan has {planned} in round {offer.round}")


def fewest_survivors(policy: Policy, setup: Setup) -> int:
    """The fewest clients whose sum this device helps to open; with shared noise, enough to add all of the noise."""
    shared = [stage.least for stage in setup.stages if _adds(stage, "clients")]
    return max(policy.min_cohort, *(shared if policy.require_dp else ()), 0)


def _adds(stage: Stage, who: str) -> bool:
    """True if `who` adds the stage's noise: the clients of a cohort together, or each for itself."""
    return stage.mechanism is not None and stage.mechanism.by == who


def _check_privacy(policy: Policy, setup: Setup, signed: bool) -> None:
    """Only noise that devices add counts, and as if this device took part in every round: a server can arrange that."""
    limit, budget = policy.require_dp, setup.budget
    if limit is None:
        return
    shared = any(_adds(stage, "clients") for stage in setup.stages)
    if budget is None or not (shared or any(_adds(stage, "each") for stage in setup.stages)):
        raise Declined("weak-privacy", f"no noise is added on the devices; this one asks for epsilon {limit:g} at most")
    if shared and not signed:
        raise Declined("weak-privacy", "devices add noise in shares, and peers that nobody vouches for may add none; "
                       "expected signed sessions")  # fmt: skip
    cost = spending(EveryRound(), budget.noise_multiplier, DELTA).epsilon(setup.plan.rounds)
    if cost > limit:
        spent = f"{setup.plan.rounds} rounds cost epsilon {cost:.4g} at delta {DELTA:g}"
        raise Declined("weak-privacy", f"{spent}; this device allows {limit:g}")
