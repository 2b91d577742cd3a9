"""How a plan asks for a rule over single updates."""

from fedavg.errors import PlanError
from fedavg.plan import Plan
from fedavg.robust import Defence, make_defence


def defence_of(plan: Plan) -> Defence | None:
    """The plan's reducer with the steps before it; None: the weighted mean."""
    if plan.reducer is not None:
        return make_defence(plan.reducer, plan.pre)
    if plan.pre:
        steps = ", ".join(map(str, plan.pre))
        raise PlanError(f"pre: got '{steps}' without a reducer; expected one, as in reducer = 'mean'")
    return None
