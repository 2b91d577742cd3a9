"""Refuses plans whose parts do not fit, and options that would have no effect, before round 1.

What differential privacy rules out is in `privacy/pairs.py`.
"""

from math import inf

import numpy as np

from fedavg.algorithms import make_algorithm
from fedavg.dp.accounting import EveryRound
from fedavg.draft import Draft
from fedavg.engine.model import Model
from fedavg.errors import PlanError, TaskError
from fedavg.metrics.goal import Goal, make_goal
from fedavg.metrics.rows import CLIENTS, TRAINING
from fedavg.metrics.training import measures_by_name
from fedavg.parts import liars_of
from fedavg.plan import Plan
from fedavg.plan.plan import default_of
from fedavg.tasks import Task
from fedavg.world import make_world


def goal_of(plan: Plan, task: Task) -> Goal:
    """What a run of the plan is watched by, and when it may stop."""
    training = measures_by_name(make_algorithm(plan.algorithm).metrics)
    return make_goal(plan.target, plan.patience, task.judged_by, training)


def check_frozen(expected: str | None, model: Model) -> None:
    """Refuse frozen weights with another fingerprint than is expected; None: any will do."""
    have = model.frozen.fingerprint if expected is not None else None
    if have != expected:
        raise TaskError(
            f"'{model.task.name}' has {f'frozen weights with the fingerprint {have}' if have else 'nothing frozen'} "
            f"here; expected {expected}. Install the pretrained model that the run was started with"
        )


def check_world(draft: Draft) -> None:
    """Refuse what a simulated world cannot time, and options that would have no effect."""
    plan, size = draft.plan, 1000
    if plan.changes is not None and draft.algorithm.pools_data:
        raise PlanError(f"changes: got '{plan.changes}' with algorithm '{plan.algorithm}', which has all data in the "
                        "hands of one client; expected none")  # fmt: skip
    if plan.world is None:
        return
    what = f"world: got '{plan.world}' with"
    if plan.uplink != default_of("uplink"):
        raise PlanError(f"{what} uplink {plan.uplink:g}, which has no effect; set it by the world's devices: "
                        f"'always:alike:up={plan.uplink:g}'")  # fmt: skip
    if draft.secagg or plan.downlink != "float32":
        option = "downlink" if plan.downlink != "float32" else "secagg"
        raise PlanError(f"{what} {option} '{getattr(plan, option)}', whose messages the clock cannot time; expected "
                        f"{option} '{default_of(option)}'")  # fmt: skip
    if draft.codec.frame_bytes(size) is None:
        raise PlanError(f"{what} codec '{plan.codec}', whose frames have no fixed length: the clock must know who "
                        "reports in time; expected float32, float16, bfloat16, quantise or lowrank")  # fmt: skip
    if draft.noise_multiplier and draft.sampler.privacy(10, 1) != EveryRound():
        raise PlanError(f"{what} noise and sampling '{draft.sampler}': who is there is not drawn at random, so that no "
                        "round is amplified by sampling; expected sampling 'turns', charged in full")  # fmt: skip
    if draft.algorithm.pools_data:
        raise PlanError(f"{what} algorithm '{plan.algorithm}', which has one client that is no device; expected none")
    if draft.algorithm.asynchronous and plan.closing != default_of("closing"):
        raise PlanError(f"closing: got '{plan.closing}' with algorithm '{plan.algorithm}', whose rounds end when its "
                        "buffer is full; expected 'all'")  # fmt: skip
    devices = make_world(plan.world).devices
    if draft.algorithm.asynchronous and min(devices.server_in, devices.server_out) < inf:
        raise PlanError(f"{what} algorithm '{plan.algorithm}': a limit of the server's line (server_in, server_out) is "
                        "shared only by clients that start together; expected none")  # fmt: skip


def check_simulated(draft: Draft) -> None:
    """Refuse options that only a world, or real devices, would use."""
    plan = draft.plan
    if plan.world is not None or draft.population is None:
        return
    if plan.closing != default_of("closing"):
        raise PlanError(f"closing: got '{plan.closing}' without a world: simulated clients then answer at once; "
                        "expected a world, such as world = 'always'")  # fmt: skip
    if draft.sampler.remembers:
        raise PlanError(f"sampling: got '{draft.sampler}', which looks back at earlier rounds; expected a world, such "
                        "as world = 'always'")  # fmt: skip


def check_steps(draft: Draft) -> None:
    """Refuse options of local training that would have no effect."""
    plan = draft.plan
    if plan.drop_last and plan.schedule("B").values == {inf}:
        raise PlanError("drop_last: got true with B=inf, where the only batch of an epoch is never dropped; leave it "
                        "out, or set B, as in B=10")  # fmt: skip
    if draft.algorithm.pools_data:
        _check_pooled(plan)


def _check_pooled(plan: Plan) -> None:
    """A baseline that is not federated has nobody to choose among."""
    one_client = f"with algorithm '{plan.algorithm}', which has all data in the hands of one client"
    if plan.C not in (0, default_of("C")):
        raise PlanError(f"C: got {plan.C:g} {one_client}; leave it out, or set C=0 (one client)")
    for name in ("sampling", "reducer"):
        if (got := getattr(plan, name)) != (default := default_of(name)):
            raise PlanError(f"{name}: got '{got}' {one_client}; expected '{default or 'none'}'")


def check_evaluation(draft: Draft) -> None:
    """Refuse an evaluation that nobody can do, and options that would have no effect."""
    plan = draft.plan
    if "server" in plan.evaluate and not draft.test:
        raise PlanError(f"evaluate: got '{plan.evaluate}', but the data has no test set; expected one, "
                        "or evaluate 'clients' with a holdout, or 'none'")  # fmt: skip
    if "clients" in plan.evaluate and not draft.holds_out:
        raise PlanError(f"evaluate: got '{plan.evaluate}', but no client holds examples out; set holdout, as in 0.2, "
                        "large enough that clients of 2 or more examples have some")  # fmt: skip
    _check_goal(draft)
    if plan.eval_clients is not None and not draft.judged_by_clients:
        raise PlanError(f"eval_clients: got {plan.eval_clients}, but no client judges the model; expected evaluate "
                        "'clients' or 'server,clients' too")  # fmt: skip
    judged = draft.judged_by_server or draft.judged_by_clients or plan.eval_train
    for name in () if judged else ("metrics", "eval_every"):
        if (got := getattr(plan, name)) != default_of(name):
            raise PlanError(f"{name}: got {got}, but nothing is evaluated; leave it out, or evaluate: 'server' "
                            "(with a test set) or 'clients' (with a holdout)")  # fmt: skip
    held = draft.population.held_sizes if draft.population else None
    if draft.judged_by_clients and draft.secagg and held is not None:
        able = int(np.count_nonzero(held))
        draft.secagg.check(min(plan.eval_clients or able, able))


def checked_liars(draft: Draft) -> frozenset[int]:
    """Who lies. Refuses a cohort that is too small for the reducer, or has more liars than it can stand."""
    liars = liars_of(draft.plan, draft.population) if draft.attack else frozenset()
    if draft.defence and draft.population:
        cohort = draft.cohort_size
        draft.defence.check(cohort, round(len(liars) * cohort / max(draft.population.with_data, 1)))
    return liars


def _check_goal(draft: Draft) -> None:
    """A run does not wait for a number that no round will have."""
    plan, goal = draft.plan, goal_of(draft.plan, draft.task)
    option = "target" if goal.target is not None else "patience"
    if goal.target is None and goal.patience is None:
        return
    got, scope = f"{option}: got {getattr(plan, option)}", goal.metric.partition(".")[0]
    if goal.metric in draft.task.judged_by:
        if not (draft.judged_by_server or draft.judged_by_clients):
            raise PlanError(f"{got}, but nothing is evaluated; expected a test set, or a holdout that clients judge on")
    elif scope == TRAINING:
        if any(stage.hides_metrics for stage in draft.stages):
            raise PlanError(f"{got}, but in a private run clients' own numbers stay with them; expected another metric")
    elif not draft.judged_by_clients:
        raise PlanError(f"{got}, but no client judges the model; expected evaluate 'clients' or 'server,clients'")
    elif draft.secagg and goal.metric.removeprefix(f"{CLIENTS}.") not in draft.task.judged_by:
        raise PlanError(f"{got}, but under secure aggregation nobody knows a spread over clients; expected the metric")
