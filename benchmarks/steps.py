"""The CPU time of one client's work by one of our workers, beside plain PyTorch and the bare products.

All three run in one process on one thread, in turns. Times are the process's own CPU time, so that a busy machine
matters little; medians of ratios within a turn. Ours is a worker's whole job: loading the weights, the local epochs,
checking the update and adding it to the exact sum. Plain is `loss.backward()` and `torch.optim.SGD` on the same client;
the products are only those of the same steps (`floor`), as PyTorch does them. None of them includes messages.

    python benchmarks/steps.py [--only W1,W9] [--repeats 15] [--out docs/results/steps.json]
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch

from fedavg import trees
from fedavg.bench.floor import products_of_step, steps_by_length
from fedavg.bench.workloads import ROUNDS, plan_of
from fedavg.engine.memory import keep_freed_memory
from fedavg.engine.model import build
from fedavg.engine.threads import one_thread
from fedavg.engine.trainer import Trainer
from fedavg.fleets.worker import TrainJob, Worker
from fedavg.optimizers import SGD, make_optimizer
from fedavg.plan import Plan
from fedavg.setup import Setup, simulation
from fedavg.tasks import Task, lstm_native
from fedavg.types import Examples

Run = Callable[[], object]
#: The least CPU time of each in a turn: several clients of a small workload.
AT_LEAST_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROUNDS))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    rows = []
    with one_thread():
        for workload in options.only.split(","):
            rows.append(measured(workload, options.repeats))
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        head = {"torch": torch.__version__, "native": os.environ.get("FEDAVG_NATIVE", ""), "repeats": options.repeats}
        options.out.write_text(json.dumps(head | {"time": "CPU", "rows": rows}, indent=1) + "\n")


def measured(workload: str, repeats: int) -> dict[str, object]:
    """Milliseconds of a client, and how they compare."""
    plan = plan_of(workload, rounds=1, workers=1)
    setup, data = simulation(plan)
    k = middle_client(data.sizes)
    examples = data.client(k)
    trainer = setup.new_trainer(data.client(int(data.sizes.argmax())))
    ours = our_client(setup, data, trainer, k)
    plain = partial(plain_client, plan, setup.task, build(setup.task, plan.seed), examples)
    floor = bare_products(plan, setup, data, examples)
    runs = {"ours": ours, "plain": plain, "products": floor}
    counts = {name: repetitions(run) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(seconds(run, counts[name]))
    return {
        "workload": workload,
        "engine": trainer.engine.name,
        "examples": len(examples),
        **{f"{name}_ms": round(1e3 * median(values), 3) for name, values in times.items()},
        "plain_over_ours": ratio(times["plain"], times["ours"]),
        "ours_over_products": ratio(times["ours"], times["products"]),
    }


def middle_client(sizes: Any) -> int:
    """The client of median size."""
    order = sizes.argsort(kind="stable")
    return int(order[len(order) // 2])


def our_client(setup: Setup, data: Any, trainer: Trainer, k: int) -> Run:
    weights = trainer.weights.clone()
    shared = setup.algorithm.shared(setup.algorithm.initial(weights))
    ring = torch.zeros(setup.update_size(len(weights)), dtype=torch.int64)
    worker = Worker(setup, data, trainer, shared, ring, None)
    job = TrainJob(k, setup.plan.work(1), cohort=1)
    return lambda: worker.handlers[TrainJob](job)


def plain_client(plan: Plan, task: Task, module: torch.nn.Module, examples: Examples) -> None:
    """As `fedavg.bench.reference` does it, in this process."""
    work, sgd = plan.work(1), make_optimizer(plan.optimizer)
    assert isinstance(sgd, SGD)
    trained = [p for p in module.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    size = int(min(work.batch, len(examples)))
    optimizer = torch.optim.SGD(trained, work.lr, sgd.momentum)
    prepared = examples if task.collate else Examples(task.prepare(examples.x), examples.y)
    for _ in range(work.epochs):
        for batch in trees.batches(trees.take(prepared, torch.randperm(len(examples))), size):
            optimizer.zero_grad(set_to_none=True)
            x, y = task.collate(batch.x, batch.y) if task.collate else (batch.x, batch.y)
            task.loss(trees.call(module, task.prepare(x) if task.collate else x), y).backward()
            optimizer.step()
    with torch.no_grad():
        for p, before in zip(trained, start, strict=True):
            p.copy_(before)


def bare_products(plan: Plan, setup: Setup, data: Any, examples: Examples) -> Run:
    """The products of the client's steps."""
    with no_kernels():  # an LSTM's products are visible only in the loop without kernels
        trainer = Trainer(setup.task, plan.seed)
        trainer.fit(trees.take(examples, slice(0, 10)))
        work = plan.work(1)
        steps = steps_by_length(data.sizes[data.sizes == len(examples)][:1], work.batch)
        runs = [
            (products_of_step(trainer, trees.take(examples, slice(0, length))), round(count * work.epochs))
            for length, count in steps.items()
        ]
    return lambda: [run(count) for run, count in runs]


@contextmanager
def no_kernels() -> Iterator[None]:
    fits = lstm_native.fits
    lstm_native.fits = lambda *_: False  # type: ignore[assignment]
    try:
        yield
    finally:
        lstm_native.fits = fits


def repetitions(run: Run) -> int:
    """How often to run in a turn; this also does the warm-up."""
    run()
    run()
    return max(1, round(AT_LEAST_S / max(seconds(run, 1), 1e-6)))


def seconds(run: Run, count: int) -> float:
    began = process_time()
    for _ in range(count):
        run()
    return (process_time() - began) / count


def ratio(above: list[float], below: list[float]) -> float:
    return round(median(a / b for a, b in zip(above, below, strict=True)), 3)


if __name__ == "__main__":
    main()
