"""What a private run has spent, round by round, as plain data.

An entry holds all that its epsilon follows from, so that anyone can compute it again. It is kept in the row of its
round and, together with the noised state, in the round's checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedavg.errors import PlanError
from fedavg.privacy.accounting import EveryRound, Sampling, spending
from fedavg.stages.localdp import LocalDP
from fedavg.stages.noise import Noise

if TYPE_CHECKING:
    from fedavg.setup import Draft


@dataclass(frozen=True)
class Budget:
    """One mechanism, applied once a round, and what it costs: by Rényi DP, which is cheap enough for every round."""

    mechanism: str
    noise_multiplier: float
    sampling: Sampling
    clients: int
    cohort: int
    delta: float
    noise: str

    def entry(self, round: int) -> dict[str, Any]:
        """The ledger's line for a round: what all rounds up to it cost together, and with one more."""
        cost = spending(self.sampling, self.noise_multiplier, self.delta)
        return {
            "round": round,
            "epsilon": cost.epsilon(round),
            "epsilon_next": cost.epsilon(round + 1),
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


def budget_of(setup: "Draft") -> Budget | None:
    """What the plan's stages cost; a plan whose first round is too dear is refused."""
    budget = _budget(setup)
    limit = setup.plan.dp_epsilon
    if limit is None:
        return budget
    if budget is None:
        raise PlanError(f"dp_epsilon: got {limit:g}, but no stage adds noise; expected one, as in 'noise:1.1'")
    first = budget.entry(0)["epsilon_next"]
    if first > limit:
        raise PlanError(
            f"dp_epsilon: got {limit:g}, but round 1 alone costs {first:.4g} ({budget.sampling.relation}); "
            "expected more, or more noise, more clients or a smaller C"
        )
    return budget


def _budget(setup: "Draft") -> Budget | None:
    if not any(isinstance(stage, Noise | LocalDP) for stage in setup.stages):
        return None
    clients, cohort = setup.clients.with_data, setup.cohort_size
    delta = setup.plan.dp_delta or min(clients**-1.1, 0.5)
    for stage in setup.stages:
        if isinstance(stage, Noise):
            sampling = setup.sampler.privacy(clients, cohort)
            if sampling is None:
                raise PlanError(
                    f"sampling: got '{setup.sampler}' with noise; expected one whose privacy is known: fixed, poisson "
                    "or turns, or one of your own that says what it is charged by (`Sampler.privacy`)"
                )
            kind = "discrete gaussian" if stage.bits else "gaussian"
            name = f"{kind}, {stage.where}"
            return Budget(name, stage.multiplier, sampling, clients, cohort, delta, setup.plan.noise_source)
        if isinstance(stage, LocalDP):
            name = "gaussian, each client by itself"
            return Budget(name, stage.multiplier, EveryRound(), clients, cohort, delta, setup.plan.noise_source)
    return None
