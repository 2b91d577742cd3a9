"""Evaluation only: judge the model of a run, or a file of weights, on data of your choice. Nothing is trained."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from fedavg.checks import check_frozen
from fedavg.data import ArrayData
from fedavg.data.own import read_examples
from fedavg.engine.model import Model
from fedavg.errors import DataError, PlanError, RunDirError, TaskError
from fedavg.fleets import Fleet, make_simulated
from fedavg.metrics.spread import OnClients
from fedavg.plan import Plan, load_plan, make_plan
from fedavg.runlog.rundir import RunDir
from fedavg.setup import resolve, resolve_data, resolve_task
from fedavg.specs import make
from fedavg.tasks import Task
from fedavg.types import FederatedData

#: What to judge on: a data set's name, federated data, or a file or folder of examples.
DataGiven = str | Path | FederatedData


@dataclass(frozen=True)
class Judgement:
    """How a model does: on a test set, and on what clients hold out where they do.

    >>> from tempfile import TemporaryDirectory
    >>> from fedavg import Plan, evaluate, run
    >>> with TemporaryDirectory() as folder:
    ...     _ = run(Plan(data="mnist", C=0.02, rounds=1, workers=1), f"{folder}/run")
    ...     found = evaluate(f"{folder}/run", workers=1)
    >>> found.examples, sorted(found.metrics), found.on_clients
    (10000, ['accuracy', 'loss'], None)
    """

    task: str
    data: str
    examples: int
    metrics: dict[str, float]
    on_clients: OnClients | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    source: str | Path,
    data: DataGiven | None = None,
    task: str | Task | None = None,
    label: str | None = None,
    fleet: str | Fleet = "local",
    **changes: Any,
) -> Judgement:
    """Judge the last model of a run directory, or the weights in a .safetensors file, which needs its `task`.

    `data` is a data set's name, federated data, or a file or folder of examples that are all judged on (.npz, or .csv
    and .parquet with the column `label`, which is called 'label' unless it is named). Without it a run is judged on its
    own data, also by clients if they hold examples out. `fleet` is where it is judged: a simulated one. `changes` are
    further options of the plan, such as metrics, workers and data_dir.

    >>> from tempfile import TemporaryDirectory
    >>> from fedavg import Plan, evaluate, run
    >>> with TemporaryDirectory() as folder:
    ...     result = run(Plan(data="mnist", C=0.02, rounds=1, workers=1), f"{folder}/run")
    ...     again = evaluate(f"{folder}/run/model.safetensors", "mnist", "mnist-2nn", workers=1)
    >>> again.metrics["accuracy"] == float(result.accuracy[-1])
    True
    """
    path = Path(source)
    if path.is_dir():
        plan, weights = _of_run(RunDir(path), data, task, label, changes)
    elif not path.is_file():
        raise RunDirError(f"{path} does not exist; expected a run directory or a .safetensors file of weights")
    elif task is None or data is None:
        raise PlanError(f"{path} holds weights alone; expected the task and the data too: --task NAME --data NAME")
    else:
        plan = make_plan({"task": task, **_on(data, label, lambda: task), **changes})
        weights = _read_weights(path, resolve_task(plan), plan.seed)
    return _judge(plan, weights, fleet)


def _of_run(
    directory: RunDir, data: DataGiven | None, task: str | Task | None, label: str | None, changes: Mapping[str, Any]
) -> tuple[Plan, Tensor]:
    """The plan for judging, with the run's task and seed, and the newest weights."""
    start = directory.newest(directory.identity()["plan"])
    if start is None:
        raise RunDirError(f"{directory.path} has no checkpoint of its plan; expected one: run it first")
    file = str(directory.path / "plan.toml")
    on = _on(data, label, lambda: load_plan(file, {}).task if task is None else task)
    given = {name: value for name, value in {"task": task, **on}.items() if value is not None}
    kept = load_plan(file, given)
    values = {
        name: getattr(kept, name)
        for name in ("task", "adapters", "data", "seed", "engine", "metrics", "workers", "data_dir")
    }
    values["frozen"] = kept.frozen or directory.identity().get("frozen")
    if data is None:
        values |= _own_data(resolve_data(replace(kept, data_dir=changes.get("data_dir", kept.data_dir))))
        values["data_dir"], changes = None, {name: value for name, value in changes.items() if name != "data_dir"}
    return make_plan({**values, **changes}), start.state.weights


def _own_data(data: FederatedData) -> dict[str, Any]:
    """The options to judge on a run's own data, by the server and by clients if they can."""
    able = {"server": data.test, "clients": data.held_sizes.any()}
    return {"data": data, "evaluate": ",".join(who for who, can in able.items() if can) or "none"}


def _on(data: DataGiven | None, label: str | None, task: Callable[[], str | Task]) -> dict[str, Any]:
    """The plan's option for the data; a file or folder of examples becomes a test set for the task."""
    path = Path(data) if isinstance(data, str | Path) and Path(data).exists() else None
    if label is not None and (path is None or path.suffix == ".npz"):
        raise PlanError(f"label: got '{label}', the column of a table; expected data in a .csv or .parquet file too")
    if path is None:
        return {"data": str(data) if isinstance(data, Path) else data}
    examples = read_examples(path, label or "label", make(task(), Task).classes)
    if not len(examples):
        raise DataError(f"{data} holds no examples; expected some to judge the model on")
    return {"data": ArrayData(str(data), examples.x, examples.y, [np.arange(len(examples))], examples)}


def _read_weights(path: Path, task: Task, seed: int) -> Tensor:
    model = Model(task, seed)
    try:
        model.load_tensors(load_file(path))
        check_frozen(_frozen_beside(path), model)
    except (SafetensorError, OSError) as error:
        raise RunDirError(f"{path} cannot be read: {error}; expected a .safetensors file of weights") from None
    except TaskError as error:
        raise TaskError(f"{path} is no model of task '{task.name}': {error}") from None
    return model.vector


def _frozen_beside(path: Path) -> str | None:
    """The fingerprint of the frozen weights that belong to a file of weights, if it says so."""
    with safe_open(path, "pt") as file:
        return dict(file.metadata() or {}).get("frozen")


def _judge(plan: Plan, weights: Tensor, where: str | Fleet) -> Judgement:
    with closing(make_simulated(where)) as fleet:
        setup = resolve(plan, fleet.open(plan), fleet.test)
        if not setup.judged_by_server and not setup.judged_by_clients:
            raise DataError(f"{_name(plan)} has no test set, and no client holds examples out; expected either")
        initial = fleet.start(setup)
        if len(initial) != len(weights):
            raise TaskError(f"the model has {len(weights):,} numbers; task '{setup.task.name}' has {len(initial):,}")
        return Judgement(
            task=setup.task.name,
            data=_name(plan),
            examples=len(fleet.test or ()),
            metrics=fleet.evaluate(weights, "test") if setup.judged_by_server else {},
            on_clients=fleet.evaluate_on_clients(weights, 0) if setup.judged_by_clients else None,
        )


def _name(plan: Plan) -> str:
    return plan.data if isinstance(plan.data, str) else plan.data.name
