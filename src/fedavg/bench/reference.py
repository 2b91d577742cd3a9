"""A plan's rounds as plain PyTorch does them: the yardstick of a fast engine.

As many single-threaded processes as the plan has workers, each with the task's own module, `loss.backward()` and
`torch.optim.SGD`; the same clients in every round, largest first to any free worker. It knows nothing of the engine.
"""

from collections.abc import Iterator
from math import ceil
from multiprocessing import get_context
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from fedavg import trees
from fedavg.bench.process_tree import Timed, cpu_seconds
from fedavg.cohorts import sample_cohort
from fedavg.engine.model import build
from fedavg.engine.threads import one_thread
from fedavg.errors import PlanError
from fedavg.optimizers import SGD, make_optimizer
from fedavg.plan import Plan
from fedavg.setup import population_of, simulation
from fedavg.tasks import Task
from fedavg.types import Examples, FederatedData


def plain_rounds(plan: Plan) -> Iterator[Timed]:
    """Trains as the plan says, and gives the seconds of each round."""
    setup, data = simulation(plan)
    population, task = population_of(data), setup.task
    module = build(task, plan.seed)
    shared = [p.detach().clone().share_memory_() for p in module.parameters() if p.requires_grad]
    _optimizer(plan, list(module.parameters()), 0.0)  # imports what it needs, which every worker else would for itself
    context = get_context("fork")
    asked, done = context.SimpleQueue(), context.SimpleQueue()
    with one_thread():
        sums = [[torch.zeros_like(p).share_memory_() for p in shared] for _ in range(plan.workers)]
        workers = [context.Process(target=_work, args=(plan, task, data, shared, own, asked, done)) for own in sums]
        for worker in workers:
            worker.start()
        for round in range(1, plan.rounds + 1):
            began, cpu = perf_counter(), cpu_seconds()
            cohort = sorted(sample_cohort(plan, population, round), key=lambda k: -int(data.sizes[k]))
            for k in cohort:
                asked.put((round, k))
            total = sum(done.get() for _ in cohort)
            for p, *parts in zip(shared, *sums, strict=True):
                p.copy_(sum(parts[1:], start=parts[0]).div_(total))
                for part in parts:
                    part.zero_()
            yield Timed(perf_counter() - began, cpu_seconds() - cpu, total)
    for _ in workers:
        asked.put(None)
    for worker in workers:
        worker.join()


def _work(
    plan: Plan, task: Task, data: FederatedData, shared: list[Tensor], own: list[Tensor], asked: Any, done: Any
) -> None:
    module = build(task, plan.seed)
    parameters = [p for p in module.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(0)
    while (job := asked.get()) is not None:
        round, k = job
        work, examples = plan.work(round), data.client(k)
        size = int(min(work.batch, len(examples)))
        optimizer = _optimizer(plan, parameters, work.lr)
        with torch.no_grad():
            for p, start in zip(parameters, shared, strict=True):
                p.copy_(start)
        prepared = examples if task.collate else Examples(task.prepare(examples.x), examples.y)
        for _ in range(work.epochs):
            order = torch.randperm(len(examples), generator=generator)
            for batch in range(ceil(len(examples) / size)):
                chosen = trees.take(prepared, order[batch * size : (batch + 1) * size])
                optimizer.zero_grad(set_to_none=True)
                _loss(task, module, chosen).backward()
                optimizer.step()
        with torch.no_grad():
            for p, total in zip(parameters, own, strict=True):
                total.add_(p, alpha=len(examples))
        done.put(len(examples))


def _loss(task: Task, module: nn.Module, batch: Examples) -> Tensor:
    if task.collate is None:
        return task.loss(trees.call(module, batch.x), batch.y)
    x, y = task.collate(batch.x, batch.y)
    return task.loss(trees.call(module, task.prepare(x)), y)


def _optimizer(plan: Plan, parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    wanted = make_optimizer(plan.optimizer)
    if not isinstance(wanted, SGD):
        raise PlanError(f"optimizer: got {wanted}; expected sgd, which the reference knows")
    return torch.optim.SGD(parameters, lr, wanted.momentum, nesterov=wanted.nesterov, weight_decay=wanted.weight_decay)
