"""The floor: the time of nothing but the matrix products and convolutions of a workload's steps.

They are recorded from one plain step of the module, then run alone, by the same native interpreter, on as many cores
at once.
"""

from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedavg import seeds, trees
from fedavg.cohorts import cohort_size
from fedavg.engine import plain
from fedavg.engine.emit import call_source
from fedavg.engine.memory import keep_freed_memory
from fedavg.engine.tape import Op, Ref
from fedavg.engine.threads import one_thread
from fedavg.engine.trainer import Trainer
from fedavg.plan import Plan
from fedavg.setup import population_of, simulation
from fedavg.types import Examples

aten = torch.ops.aten
PRODUCTS = {
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.addmm_.default, aten.mm.out,
    aten.addmm.out, aten.convolution.default, aten.convolution_backward.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}  # fmt: skip
if torch.backends.mkldnn.is_available():
    PRODUCTS.add(torch.ops.mkldnn._linear_pointwise.default)
#: Seconds that a core spends on products before the median is taken.
FLOOR_S = 3.0


class RecordProducts(TorchDispatchMode):
    """Notes every product that is computed under it, also inside our own operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in PRODUCTS and func.namespace != "aten":
            with self:
                return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
        if func in PRODUCTS:
            self.calls.append((func, args, kwargs))
        return func(*args, **kwargs)


def floor_seconds_per_round(plan: Plan) -> float:
    """Seconds that a round would take if its products were all there is to do, on the plan's number of workers."""
    with one_thread():
        return _floor(plan)


def _floor(plan: Plan) -> float:
    setup, data = simulation(plan)
    first = data.client(int(data.sizes.argmax()))
    trainer = setup.new_trainer(first)
    work = plan.work(1)
    steps = steps_by_length(data.sizes[data.sizes > 0], work.batch)
    seconds = 0.0
    for length, share in steps.items():
        step = products_of_step(trainer, trees.take(first, slice(0, length)))
        seconds += share * median(_on_all_cores(step, plan.workers, FLOOR_S / len(steps)))
    return seconds * work.epochs * cohort_size(plan.C, population_of(data)) / plan.workers


def steps_by_length(sizes: np.ndarray, batch: float) -> dict[int, float]:
    """How many steps a client takes in an epoch, on average, by the length of the batch.

    >>> steps_by_length(np.array([20, 24]), 10)
    {4: 0.5, 10: 2.0}
    """
    steps: Counter[int] = Counter()
    for size in sizes.tolist():
        full, rest = divmod(size, int(min(batch, size)))
        steps[(size - rest) // full] += full
        steps.update([rest] if rest else [])
    return {length: steps[length] / len(sizes) for length in sorted(steps)}


def products_of_step(trainer: Trainer, examples: Examples) -> Callable[[int], None]:
    """A function that runs the products of this many steps, one after another, and nothing else."""
    rng = seeds.rng(0, seeds.NONE, seeds.NONE, "floor")
    batch = Examples(trainer.inputs(examples.x, rng), trainer.targets(examples.y))
    with RecordProducts() as record:
        plain.gradients(trainer.model, batch)
    tensors: list[Tensor] = []
    lines = []
    for index, (func, args, kwargs) in enumerate(record.calls):
        op = Op(
            func, tuple(_input(arg, tensors) for arg in args), {k: _input(v, tensors) for k, v in kwargs.items()}, ()
        )
        lines.append(f"        kept[{index}] = {call_source(op)}{_one_of(func)}")
    source = "\n".join(
        [
            "def products(steps: int, inputs: List[Tensor], kept: List[Tensor]):",
            *(f"    a{i} = inputs[{i}]" for i in range(len(tensors))),
            "    for step in range(steps):",
            *lines,
            "    return kept\n",
        ]
    )
    unit = torch.jit.CompilationUnit(source)
    kept = [torch.empty(0)] * len(lines)

    def run(steps: int) -> None:
        with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            unit.products(steps, tensors, kept)

    return run


def _one_of(func: Any) -> str:
    """Which of several outputs is kept."""
    return "" if len(func._schema.returns) == 1 else "[1]"


def _input(value: Any, tensors: list[Tensor]) -> Any:
    """A tensor becomes an input of the function, of the same shape and layout; anything else stays."""
    if not isinstance(value, Tensor):
        return value
    tensors.append(value.detach())
    return Ref(f"a{len(tensors) - 1}")


def _on_all_cores(step: Callable[[int], None], workers: int, at_least_s: float) -> list[float]:
    """Seconds per step in each of the processes that run it at the same time."""
    context = get_context("fork")
    together, results = context.Barrier(workers), context.SimpleQueue()
    processes = [context.Process(target=_time, args=(step, at_least_s, together, results)) for _ in range(workers)]
    for process in processes:
        process.start()
    seconds = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return seconds


def _time(step: Callable[[int], None], at_least_s: float, together: Any, results: Any) -> None:
    keep_freed_memory()
    step(3)
    began = perf_counter()
    step(1)
    chunk = max(1, int(0.02 / max(perf_counter() - began, 1e-9)))
    together.wait()
    times, began = [], perf_counter()
    while perf_counter() - began < at_least_s:
        start = perf_counter()
        step(chunk)
        times.append((perf_counter() - start) / chunk)
    results.put(median(times))
