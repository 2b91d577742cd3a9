"""What follows from a plan before it is run: its numbers, its messages, and about how long it will take."""

from math import ceil
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fedavg import seeds, trees
from fedavg.cohorts import cohort_size
from fedavg.engine.model import Model
from fedavg.engine.threads import one_thread
from fedavg.engine.trainer import Trainer
from fedavg.errors import DataError
from fedavg.plan import Plan
from fedavg.setup import Setup, population_of, resolve_task, simulation
from fedavg.types import Examples, FederatedData

#: Seconds of training to time before extrapolating.
PROBE_S = 0.5


def derive(plan: Plan) -> dict[str, Any]:
    """The derived values of round 1. Where the data is not at hand, those that need none, and why."""
    try:
        setup, data = simulation(plan)
    except DataError as error:
        size = parameter_count(Model(resolve_task(plan), plan.seed))
        return {"parameters": size, "plan": plan.digest, "data_missing": str(error)}
    with one_thread():
        return _derive(setup, data)


def parameter_count(model: Model) -> int:
    return sum(p.numel() for p in model.module.parameters())


def _derive(setup: Setup, data: FederatedData) -> dict[str, Any]:
    """With an estimate of the time, from timing a few real steps on one core."""
    plan, clients = setup.plan, population_of(data)
    trainer = setup.new_trainer(_first(data))
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
    round_s = _seconds_per_step(setup, _first(data), trainer, int(batch)) * steps * ceil(cohort / plan.workers)
    eval_s = _seconds_per_evaluation(setup, data.test, trainer) / plan.workers
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
        "estimated_s_per_round": round(round_s + eval_s / plan.eval_every, 4),
        "estimated_s": round((round_s + eval_s / plan.eval_every) * plan.rounds, 1),
        "plan": plan.digest,
    }


def _first(data: FederatedData) -> Examples:
    """The examples of the first client that has any."""
    return data.client(int(np.flatnonzero(data.sizes)[0]))


def _seconds_per_step(setup: Setup, first: Examples, trainer: Trainer, batch: int) -> float:
    rng = seeds.rng(setup.plan.seed, seeds.NONE, seeds.NONE, "estimate")
    few, step = trees.take(first, slice(0, batch)), trainer.steps(1e-6)
    trainer.epoch(few, len(few), step, rng)
    steps, began = 0, perf_counter()
    while perf_counter() - began < PROBE_S:
        trainer.epoch(few, len(few), step, rng)
        steps += 1
    return (perf_counter() - began) / steps


def _seconds_per_evaluation(setup: Setup, test: Examples | None, trainer: Trainer) -> float:
    """Time one chunk of the test set, and scale."""
    size = setup.task.eval_batch
    if not test:
        return 0.0
    began = perf_counter()
    trainer.evaluate(trees.take(test, slice(0, size)))
    return (perf_counter() - began) * len(test) / max(min(size, len(test)), 1)
