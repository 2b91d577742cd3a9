"""What a private run has spent, round by round, as plain data.

An entry holds everything that determines its epsilon, so that anyone can recompute it. It is kept in the row of its
round and, together with the noised state, in the round's checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedavg.dp.accounting import EveryRound, Sampling, spending
from fedavg.errors import PlanError
from fedavg.stages.stage import Mechanism

if TYPE_CHECKING:
    from fedavg.draft import Draft


@dataclass(frozen=True)
class Budget:
    """One mechanism, applied once a round, and its cost: by Rényi DP, which is cheap enough to compute every round."""

    mechanism: str
    noise_multiplier: float
    sampling: Sampling
    clients: int
    cohort: int
    delta: float
    noise: str
    #: What a round releases of a client: a share in the model, in a sum that the server sees, or its update.
    releases: Literal["model", "sum", "update"]

    def entry(self, round: int, releases: int | None = None) -> dict[str, Any]:
        """The ledger's line for a round: what everything up to it costs together, and with one more release.

        `releases` are those of the client with the most. Without it: one a round, according to the sampling.
        """
        cost = spending(self.sampling, self.noise_multiplier, self.delta)
        count = round if releases is None else releases
        return {
            "round": round,
            "releases": count,
            "epsilon": cost.epsilon(count),
            "epsilon_next": cost.epsilon(count + 1),
            "delta": self.delta,
            "mechanism": self.mechanism,
            "noise_multiplier": self.noise_multiplier,
            "sampling": self.sampling.name,
            "clients": self.clients,
            "cohort": self.cohort,
            "relation": self.sampling.relation,
            "accountant": "rdp",
            "noise": self.noise,
        }


def budget_spent(limit: float | None, entry: Mapping[str, Any] | None) -> bool:
    """True if one more round would cost more than the limit."""
    return limit is not None and entry is not None and entry["epsilon_next"] > limit


def budget_of(draft: "Draft") -> Budget | None:
    """What the plan's stages cost; a plan whose first round exceeds the budget is refused."""
    budget = _budget(draft)
    check_limit(draft.plan.dp_epsilon, budget)
    if budget is None and draft.plan.dp_delta is not None:
        raise PlanError(f"dp_delta: got {draft.plan.dp_delta:g}, but no stage adds noise; expected one, or no dp_delta")
    return budget


def check_limit(limit: float | None, budget: Budget | None) -> None:
    """Refuse a limit that does not allow one round."""
    if limit is None:
        return
    if budget is None:
        raise PlanError(f"dp_epsilon: got {limit:g}, but no stage adds noise; expected one, as in 'noise:1.1'")
    first = budget.entry(0)["epsilon_next"]
    if first > limit:
        raise PlanError(
            f"dp_epsilon: got {limit:g}, but round 1 alone costs {first:.4g} ({budget.sampling.relation}); "
            "expected more, or more noise, more clients or a smaller C"
        )


def _budget(draft: "Draft") -> Budget | None:
    mechanism = draft.mechanism
    if mechanism is None:
        return None
    clients, cohort = draft.clients.with_data, draft.cohort_size
    return Budget(
        mechanism=mechanism.name,
        noise_multiplier=mechanism.multiplier,
        sampling=EveryRound() if mechanism.by == "each" else _sampling(draft),
        clients=clients,
        cohort=cohort,
        delta=draft.plan.dp_delta or min(clients**-1.1, 0.5),
        noise=draft.plan.noise_source,
        releases=_released(mechanism, masked=draft.secagg is not None),
    )


def _sampling(draft: "Draft") -> Sampling:
    """The sampling by which noise on a sum is charged: the random cohort that a client may hide in."""
    sampling = draft.sampler.privacy(draft.clients.with_data, draft.cohort_size)
    if sampling is None:
        raise PlanError(
            f"sampling: got '{draft.sampler}' with noise; expected one whose privacy is known: fixed, poisson "
            "or turns, or one of your own that says what it is charged by (`Sampler.privacy`)"
        )
    return sampling


def _released(mechanism: Mechanism, masked: bool) -> Literal["model", "sum", "update"]:
    if mechanism.by == "server":
        return "model"
    return "sum" if mechanism.by == "clients" or masked else "update"
