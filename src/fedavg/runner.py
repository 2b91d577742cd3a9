"""Runs from start to end: follow the events of `train`, record them, and give back curves and the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import nn

from fedavg.engine.model import Model, model_sha256
from fedavg.engine.trainer import Engine
from fedavg.errors import RunDirError, TaskError
from fedavg.fleets import Fleet, make_fleet
from fedavg.metrics.goal import Goal
from fedavg.plan import Plan, check_plan
from fedavg.runlog.recorder import Recorder
from fedavg.runlog.rundir import RunDir
from fedavg.runlog.summary import Summary, client_curves, curves, status_of, summarise, training_curves
from fedavg.server import FLEET, Watcher, rounds
from fedavg.setup import Setup, resolve
from fedavg.types import State


@dataclass(frozen=True)
class Result:
    """What a run gave: its curves as arrays, and the trained module.

    >>> from fedavg import Plan, run
    >>> result = run(Plan(data="mnist", C=0.02, rounds=1, workers=1))
    >>> sorted(result.metrics), type(result.model).__name__
    (['accuracy', 'loss'], 'Sequential')
    """

    plan: Plan
    summary: Summary
    #: The metric that the run is watched by, and its target.
    goal: Goal
    #: The rounds that were evaluated, and each metric there: on the server's test set, or on clients if it has none.
    rounds: np.ndarray
    metrics: dict[str, np.ndarray]
    #: The rounds in which clients judged, and by metric the value over all their examples and, as `accuracy.p10`, its
    #: spread over clients.
    client_rounds: np.ndarray
    client_metrics: dict[str, np.ndarray]
    #: The cohort's training loss after every round.
    train_loss: np.ndarray
    #: All that cohorts measured in training, by name, after every round: `train_loss`, and what the algorithm adds.
    training: dict[str, np.ndarray]
    model: nn.Module

    @property
    def accuracy(self) -> np.ndarray:
        return self._curve("accuracy")

    @property
    def loss(self) -> np.ndarray:
        return self._curve("loss")

    def _curve(self, name: str) -> np.ndarray:
        if len(self.rounds) and name not in self.metrics:
            raise TaskError(f"this run has no {name}; expected one of result.metrics: {', '.join(self.metrics)}")
        return self.metrics.get(name, np.array([]))


def run(
    plan: Plan, run_dir: str | Path | None = None, watch: Watcher | None = None, fleet: str | Fleet = "local"
) -> Result:
    """Train to the end of the plan. With a run directory, the run is recorded and can be resumed after any stop.

    `watch` is called with every event: a `Start`, then a `Round` for each round. `fleet` says where clients run: an
    object, a name, or the import name of installed code.

    >>> from fedavg import Plan
    >>> result = run(Plan(task="mnist-2nn", data="mnist", C=0.02, rounds=2, workers=1))
    >>> result.rounds.tolist()
    [1, 2]
    """
    check_plan(plan, "run")
    if not isinstance(run_dir, str | Path | None):
        raise RunDirError(f"run: got {run_dir!r} for run_dir; expected a path, or None to record nothing")
    directory = RunDir(Path(run_dir)) if run_dir is not None else None
    if directory:
        directory.check_new()
    clients = make_fleet(fleet)
    setup = _opened(plan, clients, directory)
    with Recorder(setup, clients, directory, watch) as recorder:
        for event in rounds(setup, clients):
            recorder.record(event)
        return finish(setup, recorder.rows, recorder.state, recorder.engine, directory)


def resume(run_dir: str | Path, watch: Watcher | None = None, fleet: str | Fleet = "local", **changes: Any) -> Result:
    """Go on with a run that was stopped; the result is the one that it would have had, bit for bit.

    (With noise from the system's entropy no two runs are alike; there, no round that was recorded is done again.)
    A run that was started from Python with objects of its own needs them again: `resume(dir, task=..., data=...)`.
    Runtime options (workers, worker_timeout, start_method, data_dir, checkpoint_s) may be changed, and `rounds` raised:
    a run that is made longer gives what it would have given had it been planned so. It may go on with another `fleet`.

    >>> from tempfile import TemporaryDirectory
    >>> from fedavg import Plan
    >>> with TemporaryDirectory() as folder:
    ...     _ = run(Plan(data="mnist", C=0.02, rounds=1, workers=1), f"{folder}/run")
    ...     resume(f"{folder}/run", rounds=2).summary.rounds
    2
    """
    if not isinstance(run_dir, str | Path):
        raise RunDirError(f"resume: got {run_dir!r}; expected the path of a run directory")
    directory = RunDir(Path(run_dir))
    clients = make_fleet(fleet)
    setup = _opened(directory.plan(**changes), clients, directory)
    identity = directory.identity()
    if clients.fingerprint != identity["data"]:
        raise RunDirError(
            f"{directory.path} was started on other data (fingerprint {identity['data']}; "
            f"got {clients.fingerprint}); point --data-dir to the original data"
        )
    with directory.locked():
        unrepeatable = setup.budget is not None and setup.plan.noise_source == "os"
        start = directory.rewind(setup.plan, once=unrepeatable)
        rows = directory.rows()
        if start and status_of(setup.plan, rows, setup.goal, setup.algorithm.finished(start.state)) != "stopped":
            directory.extend(setup.plan)
            engine = Engine(identity["engine"], identity.get("engine_reason", ""))
            return finish(setup, rows, start.state, engine, directory)
        with Recorder(setup, clients, directory, watch, resumed_at=rows) as recorder:
            for event in rounds(setup, clients, start if start and start.round else None):
                recorder.record(event)
            return finish(setup, recorder.rows, recorder.state, recorder.engine, directory)


def _opened(plan: Plan, fleet: Fleet, directory: RunDir | None) -> Setup:
    """The plan's parts for the clients that the fleet finds; a recorded run also keeps what clients carry."""
    setup = resolve(plan, fleet.open(plan), fleet.test)
    if directory and setup.keeps_state:
        fleet.keep_states_in(directory.states)
    return setup


def _reports(state: State) -> np.ndarray | None:
    """How often each client has reported, where the fleet remembers it."""
    remembered = state.others.get(FLEET, {})
    return remembered["reported"].numpy() if "reported" in remembered else None


def finish(
    setup: Setup,
    rows: list[dict[str, Any]],
    state: State,
    engine: Engine,
    directory: RunDir | None,
    spent: dict[str, Any] | None = None,
) -> Result:
    """The result of a run from its rows and last state; also written to the directory.

    `spent` is the ledger's last word, if the budget ended the run in the middle of a round.
    """
    model = Model(setup.task, setup.plan.seed)
    model.load(state.weights)
    summary = summarise(
        setup.plan,
        rows,
        metrics=setup.task.judged_by,
        goal=setup.goal,
        ended=setup.algorithm.finished(state),
        parameters=len(state.weights),
        engine=engine,
        sha256=model_sha256(state.weights),
        run_dir=str(directory.path) if directory else None,
        spent=spent,
        reported=_reports(state),
    )
    if directory:
        directory.write_json("summary.json", summary.to_dict())
        tensors = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
        directory.write_model(save(tensors))
    rounds, metrics = curves(rows)
    client_rounds, client_metrics = client_curves(rows)
    return Result(
        plan=setup.plan,
        summary=summary,
        goal=setup.goal,
        rounds=np.array(rounds),
        metrics={name: np.array(values, float) for name, values in metrics.items()},
        client_rounds=np.array(client_rounds),
        client_metrics={name: np.array(values, float) for name, values in client_metrics.items()},
        train_loss=np.array([row["train_loss"] for row in rows], float),
        training={name: np.array(values, float) for name, values in training_curves(rows).items()},
        model=model.module.eval(),
    )
