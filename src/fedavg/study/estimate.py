"""What can be derived from a plan before it runs: its numbers, its messages, and an estimate of its time."""

from math import ceil
from typing import Any

import torch

from fedavg import seeds
from fedavg.cohorts import cohort_size
from fedavg.engine.model import Model
from fedavg.engine.threads import one_thread
from fedavg.engine.trainer import Trainer
from fedavg.errors import DataError
from fedavg.fleets.start import method_of
from fedavg.plan import Plan
from fedavg.setup import Setup, population_of, proved_trainer, resolve_task, simulation
from fedavg.study.cost import Cost, cost_of
from fedavg.study.rates import rates_of_machine
from fedavg.types import FederatedData


def derive(plan: Plan) -> dict[str, Any]:
    """The derived values of round 1. Without the data, only those that need none, and why."""
    rates = rates_of_machine(method_of(plan))
    try:
        setup, data = simulation(plan)
    except DataError as error:
        size = parameter_count(Model(resolve_task(plan), plan.seed))
        return {"parameters": size, "plan": plan.digest, "data_missing": str(error)}
    with one_thread():
        trainer = proved_trainer(setup, data)
        return _derive(setup, data, trainer, cost_of(setup, data, trainer, rates))


def parameter_count(model: Model) -> int:
    return sum(p.numel() for p in model.module.parameters())


def _derive(setup: Setup, data: FederatedData, trainer: Trainer, cost: Cost) -> dict[str, Any]:
    plan, clients = setup.plan, population_of(data)
    size = len(trainer.weights)
    work = plan.work(1)
    sizes = data.sizes[data.sizes > 0]
    cohort = cohort_size(plan.C, clients)
    mean_size = float(sizes.mean())
    batch = min(work.batch, mean_size)
    steps = 1.0 if setup.algorithm.pools_data else work.epochs * ceil(mean_size / batch)
    numbers = setup.update_size(size)
    like_an_update = torch.from_numpy(seeds.rng(plan.seed, 0, 0, "estimate").standard_normal(numbers, "float32"))
    frame = setup.codec.encode(like_an_update, seeds.rng(plan.seed, 0, 0, "codec"))
    round_s = cost.round_s + cost.evaluation_s / plan.eval_every
    return {
        "parameters": parameter_count(trainer.model),
        "clients": clients.count,
        "clients_with_data": clients.with_data,
        "clients_per_round": cohort,
        "examples": int(sizes.sum()),
        "test_examples": len(data.test or ()),
        "examples_per_client": {"min": int(sizes.min()), "mean": mean_size, "max": int(sizes.max())},
        "u": steps if setup.algorithm.pools_data else work.epochs * mean_size / batch,
        "bytes_up_per_round": len(frame) * cohort,
        "bytes_down_per_round": 4 * size * setup.algorithm.vectors_down * cohort,
        "simulated_s_per_round": len(frame) / (plan.uplink * 1e6),
        "engine": trainer.engine.name,
        "estimated_s_per_round": round(round_s, 4),
        "estimated_s": round(round_s * plan.rounds, 1),
        "estimated_peak_mb": None if cost.peak_mb is None else round(cost.peak_mb),
        "plan": plan.digest,
    }
