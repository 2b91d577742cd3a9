"""Runs from start to end: follow the events of `train`, record them, and return curves and the model."""

from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from itertools import chain, count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

import numpy as np
from torch import nn

from fedavg.engine.model import Model, model_sha256
from fedavg.engine.trainer import Engine
from fedavg.errors import PlanError, RunDirError, TaskError
from fedavg.fleets import Fleet, make_fleet
from fedavg.metrics.goal import Goal
from fedavg.plan import Plan, check_plan
from fedavg.runlog.best import BestKeeper, BestModel, best_by, model_file, model_of
from fedavg.runlog.frames import flat_rows, frame
from fedavg.runlog.glance import as_html, one_line
from fedavg.runlog.progress import ProgressLine
from fedavg.runlog.recorder import Recorder
from fedavg.runlog.rundir import RunDir
from fedavg.runlog.stopping import StopRule
from fedavg.runlog.summary import Summary, client_curves, curves, status_of, summarise, training_curves
from fedavg.server import FLEET, Event, Round, Watcher, rounds
from fedavg.setup import Setup, resolve
from fedavg.types import State

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run: its curves as arrays, and the trained module.

    >>> from fedavg import Plan, run
    >>> result = run(Plan(data="mnist", C=0.02, rounds=1, workers=1))
    >>> sorted(result.metrics), type(result.model).__name__
    (['accuracy', 'loss'], 'Sequential')
    """

    plan: Plan
    summary: Summary
    #: The metric that the run watches, and its target.
    goal: Goal
    #: The rounds that were evaluated, and each metric there: on the server's test set, or on clients if it has none.
    rounds: np.ndarray
    metrics: dict[str, np.ndarray]
    #: The rounds in which clients judged; by metric, the value over all their examples and its spread over clients,
    #: such as `accuracy.p10`.
    client_rounds: np.ndarray
    client_metrics: dict[str, np.ndarray]
    #: One row for each round, as in metrics.jsonl.
    rows: list[dict[str, Any]]
    #: The cohort's training loss after every round.
    train_loss: np.ndarray
    #: What cohorts measured in training, by name, after every round: `train_loss`, and what the algorithm adds.
    training: dict[str, np.ndarray]
    #: The model after the last round, and the best one (`summary.best_model` says by which metric and of which round).
    model: nn.Module
    best_model: nn.Module | None = None

    @property
    def accuracy(self) -> np.ndarray:
        return self._curve("accuracy")

    @property
    def loss(self) -> np.ndarray:
        return self._curve("loss")

    def to_pandas(self) -> "pd.DataFrame":
        """One row for each round: what the server and the clients measured, bytes, times."""
        return frame(flat_rows(self.rows))

    def __repr__(self) -> str:
        return f"<Result {one_line(self.summary)}>"

    def _repr_html_(self) -> str:
        """In a notebook: a small table with the curve."""
        return as_html(self.summary, self.goal, self.rows)

    def _curve(self, name: str) -> np.ndarray:
        if len(self.rounds) and name not in self.metrics:
            raise TaskError(f"this run has no {name}; expected one of result.metrics: {', '.join(self.metrics)}")
        return self.metrics.get(name, np.array([]))


def run(
    plan: Plan,
    run_dir: str | Path | None = None,
    watch: Watcher | None = None,
    fleet: str | Fleet = "local",
    *,
    exist: str = "error",
    progress: bool = False,
    stop: StopRule | None = None,
    keep_best: str | None = None,
) -> Result:
    """Train to the end of the plan. With a run directory, the run is recorded and can be resumed after any stop.

    `watch` is called with every event: a `Start`, then a `Round` for each round. `fleet` says where clients run: an
    object, a name, or the import name of installed code.

    `exist` says what to do if the directory already has a run: `"error"`, `"resume"` (continue it, if its plan is this
    one; more rounds make it longer) or `"new"` (record beside it, in `runs/a-2`). `progress` shows a live line on
    stderr. `stop` ends the run early, such as `Patience("loss", 5)`. `keep_best` names the metric by which the best
    model is chosen and kept, besides the last [the metric that the run watches].

    >>> from fedavg import Plan
    >>> result = run(Plan(task="mnist-2nn", data="mnist", C=0.02, rounds=2, workers=1))
    >>> result.rounds.tolist()
    [1, 2]
    """
    check_plan(plan, "run")
    _check_followers(watch, stop)
    if not isinstance(run_dir, str | Path | None):
        raise RunDirError(f"run: got {run_dir!r} for run_dir; expected a path, or None to record nothing")
    path = _place(run_dir, exist)
    if path and exist == "resume" and (path / "run.json").exists():
        options = {spec.name: getattr(plan, spec.name) for spec in fields(plan)}
        return resume(path, watch, fleet, progress=progress, stop=stop, keep_best=keep_best, **options)
    directory = RunDir(path) if path else None
    if directory:
        directory.check_new()
    clients = make_fleet(fleet)
    setup = _opened(plan, clients, directory)
    with _Following(setup, clients, directory, watch, progress, stop, keep_best) as following:
        with closing(rounds(setup, clients)) as events:
            for event in events:
                if following.ends_with(event):
                    break
        return following.result()


def resume(
    run_dir: str | Path,
    watch: Watcher | None = None,
    fleet: str | Fleet = "local",
    *,
    progress: bool = False,
    stop: StopRule | None = None,
    keep_best: str | None = None,
    **changes: Any,
) -> Result:
    """Resume a run that was stopped; the result is that of the uninterrupted run, bit for bit.

    (With noise from OS entropy no two runs are the same; then no recorded round is repeated.)
    A run that was started from Python with its own objects needs them again: `resume(dir, task=..., data=...)`.
    Runtime options (workers, worker_timeout, start_method, data_dir, checkpoint_s) may be changed, and `rounds` raised:
    a longer run gives the result of a plan with that many rounds. It may continue on another `fleet`.

    >>> from tempfile import TemporaryDirectory
    >>> from fedavg import Plan
    >>> with TemporaryDirectory() as folder:
    ...     _ = run(Plan(data="mnist", C=0.02, rounds=1, workers=1), f"{folder}/run")
    ...     resume(f"{folder}/run", rounds=2).summary.rounds
    2
    """
    if not isinstance(run_dir, str | Path):
        raise RunDirError(f"resume: got {run_dir!r}; expected the path of a run directory")
    _check_followers(watch, stop)
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
            best = _best_keeper(setup, directory, keep_best, rows).found()
            return finish(setup, rows, start.state, engine, directory, best=best)
        with _Following(setup, clients, directory, watch, progress, stop, keep_best, resumed_at=rows) as following:
            with closing(rounds(setup, clients, start if start and start.round else None)) as events:
                for event in events:
                    if following.ends_with(event):
                        break
            return following.result()


def _place(run_dir: str | Path | None, exist: str) -> Path | None:
    """Where a run is recorded."""
    if exist not in ("error", "resume", "new"):
        raise RunDirError(f"run: got exist={exist!r}; expected 'error', 'resume' or 'new'")
    if run_dir is None:
        if exist != "error":
            raise RunDirError(f"run: got exist={exist!r} without a run directory, so nothing can exist; name one")
        return None
    path = Path(run_dir)
    if exist == "new":
        return next(p for p in chain([path], (Path(f"{path}-{n}") for n in count(2))) if not p.exists())
    return path


def _opened(plan: Plan, fleet: Fleet, directory: RunDir | None) -> Setup:
    """The plan's parts for the clients that the fleet finds; a recorded run also stores the clients' states."""
    setup = resolve(plan, fleet.open(plan), fleet.test)
    if directory and setup.keeps_state:
        fleet.keep_states_in(directory.states)
    return setup


def _reports(state: State) -> np.ndarray | None:
    """How often each client has reported, if the fleet remembers it."""
    remembered = state.others.get(FLEET, {})
    return remembered["reported"].numpy() if "reported" in remembered else None


def _check_followers(watch: Watcher | None, stop: StopRule | None) -> None:
    if watch is not None and not callable(watch):
        raise PlanError(f"watch: got {watch!r}; expected a function of an event, such as print")
    if stop is not None and not callable(stop):
        raise PlanError(f"stop: got {stop!r}; expected a function of a Round, or fedavg.Patience('loss', 5)")


def _best_keeper(
    setup: Setup, directory: RunDir | None, keep_best: str | None, rows: list[dict[str, Any]]
) -> BestKeeper:
    goal = best_by(keep_best, setup.goal, setup.task.judged_by)
    return BestKeeper(setup, goal, rows, directory.path if directory else None)


@final
class _Following:
    """What follows a run: its directory, a watcher, a progress line, a rule that ends it."""

    def __init__(
        self,
        setup: Setup,
        fleet: Fleet,
        directory: RunDir | None,
        watch: Watcher | None,
        progress: bool,
        stop: StopRule | None,
        keep_best: str | None,
        resumed_at: list[dict[str, Any]] | None = None,
    ) -> None:
        """`resumed_at` has the rows with which a resumed run begins; a new run has none."""
        self._setup, self._directory, self._stop = setup, directory, stop
        self._best = _best_keeper(setup, directory, keep_best, resumed_at or [])
        self._line = ProgressLine(setup.plan, setup.goal, directory.path if directory else None, quiet=not progress)
        self._recorder = Recorder(setup, fleet, directory, watch, self._best, resumed_at)
        self._ended_by: str | None = None
        self._open = ExitStack()

    def __enter__(self) -> "_Following":
        self._open.enter_context(self._line)
        self._open.enter_context(self._recorder)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.__exit__(kind, error, trace)

    def ends_with(self, event: Event) -> bool:
        """Processes an event; True if the run's own rule says that it was the last."""
        self._recorder.record(event)
        self._line(event)
        if self._stop and isinstance(event, Round) and self._stop(event):
            self._ended_by = "ended by its stop rule"
        return self._ended_by is not None

    def result(self) -> Result:
        self._best.save()
        told, best = self._recorder, self._best.found()
        return finish(self._setup, told.rows, told.state, told.engine, self._directory, None, self._ended_by, best)


def finish(
    setup: Setup,
    rows: list[dict[str, Any]],
    state: State,
    engine: Engine,
    directory: RunDir | None,
    spent: dict[str, Any] | None = None,
    ended_by: str | None = None,
    best: BestModel | None = None,
) -> Result:
    """The result of a run from its rows and last state; also written to the directory.

    `spent` is the ledger's last entry, if the budget ended the run in the middle of a round.
    """
    model = model_of(setup, state.weights)
    summary = summarise(
        setup.plan,
        rows,
        metrics=setup.task.judged_by,
        goal=setup.goal,
        ended=setup.algorithm.finished(state),
        parameters=len(state.weights),
        frozen=model.frozen.numbers,
        engine=engine,
        sha256=model_sha256(state.weights),
        run_dir=str(directory.path) if directory else None,
        spent=spent,
        reported=_reports(state),
        ended_by=ended_by,
        best_model={"metric": best.metric, "value": best.value, "round": best.round} if best else None,
    )
    if directory:
        directory.write_json("summary.json", summary.to_dict())
        directory.write_model(model_file(model))
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
        rows=rows,
        train_loss=np.array([row["train_loss"] for row in rows], float),
        training={name: np.array(values, float) for name, values in training_curves(rows).items()},
        model=model.module.eval(),
        best_model=_best_module(setup, best),
    )


def _best_module(setup: Setup, best: BestModel | None) -> nn.Module | None:
    if best is None:
        return None
    model = Model(setup.task, setup.plan.seed)
    model.load_tensors(best.tensors)
    return model.module.eval()
