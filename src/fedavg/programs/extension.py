"""Changes a plan while its run is under way: more rounds, or another learning rate from a given round."""

from dataclasses import replace

from fedavg.errors import PlanError
from fedavg.fleets.http.protocol.messages import Extension
from fedavg.plan import Plan
from fedavg.plan.rates import steps_of, text_of_steps


def extended(plan: Plan, extension: Extension, committed: int) -> Plan:
    """The extended plan; nothing changes about committed rounds."""
    if extension.rounds is None and extension.lr is None:
        raise PlanError("got no change; expected more rounds, or another rate (lr), or both")
    if extension.from_round is not None and extension.lr is None:
        raise PlanError("from_round is the first round of another rate; expected lr as well")
    if extension.rounds is not None:
        if extension.rounds <= committed:
            raise PlanError(f"rounds: got {extension.rounds}; expected more than the {committed} that are committed")
        plan = replace(plan, rounds=extension.rounds)
    if extension.lr is not None:
        first = committed + 1 if extension.from_round is None else extension.from_round
        plan = replace(plan, lr=_from_round(plan, extension.lr, first, committed))
    return plan


def _from_round(plan: Plan, lr: float, first: int, committed: int) -> str | float:
    if not committed < first <= plan.rounds:
        raise PlanError(
            f"from_round: got {first}; expected one from {committed + 1}, the next one, to {plan.rounds}, the last"
        )
    steps = steps_of(plan.lr)  # type: ignore[arg-type]
    if steps is None:
        raise PlanError(
            f"lr: got another rate for a plan with lr = '{plan.lr}', which follows a formula; expected a plan whose "
            "rate is a number, or numbers from rounds on, as in '0.1,100:0.01'"
        )
    return text_of_steps([*(step for step in steps if step[0] < first), (first, lr)])
