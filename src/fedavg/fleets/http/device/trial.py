"""What a device checks before it enrols: its tasks and its examples fit together."""

from collections.abc import Iterable, Mapping

from fedavg import trees
from fedavg.data.finite import check_finite
from fedavg.engine.trainer import Trainer
from fedavg.errors import DataError, PlanError
from fedavg.fleets.http.device.sources import Source, read_some
from fedavg.specs import make
from fedavg.tasks import Task

#: How a user gives tasks: one name, several names, or a mapping from names to tasks.
Tasks = str | Iterable[str] | Mapping[str, Task | str]


def tasks_of(given: Tasks) -> dict[str, Task]:
    """The tasks that a device's owner allows, by their names in plans."""
    if isinstance(given, str):
        given = [given]
    named = given if isinstance(given, Mapping) else {name: name for name in given}
    if not named:
        raise PlanError("tasks: got none; expected at least one, as in tasks={'mnist-2nn'}")
    for name in named:
        if not isinstance(name, str):
            raise PlanError(
                f"tasks: got {name!r}; expected names, or a dict of names to tasks: {{'my_package.tasks:TASK': TASK}}"
            )
    return {name: make(task, Task) for name, task in named.items()}


def sources_of(data: Mapping[str, Source] | Source, tasks: Iterable[str]) -> dict[str, Source]:
    """The source of each task."""
    if isinstance(data, Source):
        return dict.fromkeys(tasks, data)
    missing = sorted(set(tasks) ^ set(data))
    if missing:
        raise PlanError(
            f"data: got {sorted(data)} by task; expected the same names as tasks, and '{missing[0]}' is not"
        )
    return dict(data)


def try_out(tasks: Mapping[str, Task], sources: Mapping[str, Source], device: str) -> int:
    """Try one step of each task on its examples and discard it; returns the largest number of examples of a task."""
    counts = []
    for name, task in tasks.items():
        examples = read_some(sources[name], task.classes)
        check_finite(examples, "this device's data")
        _check_labels(task, examples.y)
        Trainer(task, 0, device).choose_engine("plain", trees.take(examples, slice(0, 2)))
        counts.append(len(examples))
    return max(counts)


def _check_labels(task: Task, y: object) -> None:
    """Every label must have a name in the task."""
    if task.classes is None or trees.leaves(y)[0].is_floating_point():
        return
    low, high = (int(end) for end in trees.leaves(y)[0].aminmax())
    if not 0 <= low <= high < len(task.classes):
        raise DataError(
            f"this device's labels are from {low} to {high}; task '{task.name}' has {len(task.classes)} classes, "
            f"numbered from 0: {', '.join(task.classes[:5])}{', ...' if len(task.classes) > 5 else ''}"
        )
