"""The parts of a plan, one by one: each is made, and refused where the plan does not fit it."""

from typing import TYPE_CHECKING

import numpy as np

from fedavg import seeds
from fedavg.algorithms import Algorithm
from fedavg.attacks import Attack, make_attack
from fedavg.codecs import Codec, make_codec
from fedavg.codecs.downlink import Downlink
from fedavg.engine.model import Model
from fedavg.errors import PlanError
from fedavg.plan import Plan
from fedavg.robust import Defence, make_defence
from fedavg.samplers import Sampler, make_sampler
from fedavg.tasks import Task
from fedavg.types import Population

if TYPE_CHECKING:  # secure aggregation needs `cryptography`, which a plain simulation does not
    from fedavg.secagg.options import Masking


def sampler_of(plan: Plan, task: Task) -> Sampler:
    sampler = make_sampler(plan.sampling)
    if sampler.needs_losses and "loss" not in task.judged_by:
        raise PlanError(
            f"sampling: got '{sampler}', which looks at clients' losses, and task '{task.name}' has no metric 'loss'; "
            "expected one: metrics = ['loss']"
        )
    return sampler


def secagg_of(plan: Plan) -> "Masking | None":
    if plan.secagg == "none":
        return None
    from fedavg.secagg.options import make_masking

    return make_masking(plan.secagg)


def bound_codec(value: str | Codec, task: Task, vectors: int) -> Codec:
    """A codec for this many vectors of the task's model, end to end."""
    return make_codec(value).bind(lambda: [tuple(slot.shape) for slot in Model(task, 0).slots] * vectors)


def downlink_of(plan: Plan, task: Task, algorithm: Algorithm) -> Downlink | None:
    if plan.downlink == "float32":
        return None
    if algorithm.asynchronous:
        raise PlanError(f"downlink: got '{plan.downlink}' with algorithm '{plan.algorithm}'; expected 'float32'")
    if algorithm.vectors_down != 1:
        raise PlanError(
            f"downlink: got '{plan.downlink}' with algorithm '{plan.algorithm}', which shares "
            f"{algorithm.vectors_down} vectors; only weights can be compressed: expected downlink 'float32'"
        )
    return Downlink(bound_codec(plan.downlink, task, 1), plan.seed)


def defence_of(plan: Plan) -> Defence | None:
    """The plan's reducer with the steps before it; None: the weighted mean."""
    if plan.reducer is not None:
        return make_defence(plan.reducer, plan.pre)
    if plan.pre:
        steps = ", ".join(map(str, plan.pre))
        raise PlanError(f"pre: got '{steps}' without a reducer; expected one, as in reducer = 'mean'")
    return None


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
            f"attack: got '{plan.attack}', and the clients here are real: their lies cannot be simulated; expected none"
        )
    able = np.flatnonzero(sizes)
    if not isinstance(chosen, float):
        if strangers := sorted(set(chosen) - set(able.tolist())):
            raise PlanError(f"attackers: got client {strangers[0]}, which has no data; expected some of those who do")
        return frozenset(chosen)
    count = round(chosen * len(able))
    if not count:
        raise PlanError(f"attackers: got {chosen:g} of {len(able)} clients, which is none; expected a larger share")
    rng = seeds.rng(plan.seed, seeds.NONE, seeds.NONE, "attackers")
    return frozenset(int(k) for k in rng.choice(able, count, replace=False))


def check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # PyTorch's message is about its internals
        raise PlanError(f"device: got '{device}', which is not available here; expected 'cpu', or 'cuda'") from error
