"""How a plan asks for liars: which attack, and who."""

import numpy as np

from fedavg import seeds
from fedavg.attacks import Attack, make_attack
from fedavg.errors import PlanError
from fedavg.plan import Plan
from fedavg.tasks import Task
from fedavg.types import Population


def attack_of(plan: Plan, task: Task) -> Attack | None:
    """The plan's attack; None: nobody lies."""
    if plan.attack is None:
        if plan.attackers:
            raise PlanError(f"attackers: got {plan.attackers} without an attack; expected one: attack = 'signflip'")
        return None
    if not plan.attackers:
        raise PlanError(f"attack: got '{plan.attack}' without attackers; expected some: attackers = 0.2")
    attack = make_attack(plan.attack)
    if attack.targeted and "accuracy" not in task.judged_by:
        raise PlanError(
            f"attack: got '{attack}', whose success is an accuracy, and task '{task.name}' has no such metric; "
            "expected one: metrics = ['accuracy']"
        )
    return attack


def liars_of(plan: Plan, population: Population | None) -> frozenset[int]:
    """As many as the plan says of the clients that have data, drawn by the seed; or those that it names."""
    chosen, sizes = plan.attackers, population.sizes if population else None
    if sizes is None:
        raise PlanError(
            f"attack: got '{plan.attack}', and the clients here are real: nobody simulates their lies; expected none"
        )
    able = np.flatnonzero(sizes)
    if not isinstance(chosen, float):
        if strangers := sorted(set(chosen) - set(able.tolist())):
            raise PlanError(f"attackers: got client {strangers[0]}, which has no data; expected some of those who do")
        return frozenset(chosen)
    count = round(chosen * len(able))
    if not count:
        raise PlanError(f"attackers: got {chosen:g} of {len(able)} clients, which is nobody; expected a larger share")
    rng = seeds.rng(plan.seed, seeds.NONE, seeds.NONE, "attackers")
    return frozenset(int(k) for k in rng.choice(able, count, replace=False))
