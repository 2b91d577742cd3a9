"""What every task must do, on examples that fit it."""

from typing import Any

import torch

from fedavg.engine.model import Model
from fedavg.tasks import Task
from fedavg.testing.problem import check_repeats, last, require, small_data, small_plan, starts
from fedavg.types import FederatedData


def check_task(task: Task, data: FederatedData | None = None, **options: Any) -> None:
    """Its module starts from the same weights each time, trains on the data, and is judged.

    `data` must fit the task; else points in eight dimensions of three classes are used.

    >>> from fedavg.testing.problem import small_task
    >>> check_task(small_task())
    """
    what = f"task {getattr(task, 'name', task)!r}"
    require(isinstance(task, Task), f"{what} is not a fedavg.Task")
    require(
        task.build() is not task.build(),
        f"{what}: `build` gave the same module twice; expected a new one at each call: lambda: MyModule()",
    )
    plan = small_plan(task=task, data=data or small_data(), **options)
    start = starts(plan, what)
    first, second = (Model(task, 0).vector for _ in range(2))
    require(
        torch.equal(first, second),
        f"{what}: `build` gave other weights for the same seed; draw them from torch's generator, and build a new "
        "module at each call",
    )
    end = last(plan, what)
    require(
        not torch.equal(start.state.weights, end.state.weights),
        f"{what}: training changed nothing; expected parameters that require gradients and a loss that depends on them",
    )
    check_repeats(plan, what, end)
