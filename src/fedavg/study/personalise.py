"""Personalisation by fine-tuning: each client trains the shared model a little further on its own data, for itself.

Each client's examples are split: the model is fine-tuned on one part, and the shared and the fine-tuned model are
judged on the other, held-out part. If the run itself held those examples out (the plan's `holdout`), neither model has
seen them; otherwise the shared model was trained on them too, and both scores are too high: `seen` says so.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor

from fedavg.data import HeldOut
from fedavg.errors import DataError, RunDirError, TaskError
from fedavg.fleets import Fleet, make_simulated
from fedavg.fleets.worker import Tuned, TuneJob
from fedavg.plan import Plan
from fedavg.runlog.rundir import RunDir
from fedavg.setup import resolve, resolve_data, resolve_task
from fedavg.types import FederatedData

PERCENTILES: Final = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class FineTuning:
    """How a client trains for itself: epochs, batch size, learning rate; `share`: what is held out if the run held
    nothing out."""

    epochs: int
    batch: float
    lr: float
    share: float


@dataclass(frozen=True)
class Personalised:
    """The result of fine-tuning by client. 'Better' refers to `metric`; `skipped` clients had nothing to judge on.

    >>> tuned = Tuned(0, 4, 1, {"accuracy": 0.5}, {"accuracy": 0.75})
    >>> Personalised(9, FineTuning(5, 10, 0.1, 0.2), True, "accuracy", True, (tuned,), 0).gains.tolist()
    [0.25]
    """

    round: int
    settings: FineTuning
    seen: bool
    metric: str
    higher_is_better: bool
    clients: tuple[Tuned, ...]
    skipped: int

    @property
    def gains(self) -> np.ndarray:
        """By how much each client's own model is better than the shared one."""
        sign = 1 if self.higher_is_better else -1
        return np.array([sign * (c.own[self.metric] - c.shared[self.metric]) for c in self.clients])

    def to_dict(self) -> dict[str, Any]:
        spreads = {
            name: {
                "shared": spread([c.shared[name] for c in self.clients]),
                "own": spread([c.own[name] for c in self.clients]),
            }
            for name in self.clients[0].shared
        }
        better = {word: float(np.mean(test(self.gains))) for word, test in _COMPARISONS.items()}
        return {
            "round": self.round,
            "settings": asdict(self.settings),
            "held_out_seen_in_training": self.seen,
            "metric": self.metric,
            "clients": len(self.clients),
            "skipped": self.skipped,
            "metrics": spreads,
            "gain": spread(self.gains),
            "share_of_clients": better,
            "by_client": [asdict(client) for client in self.clients],
        }


_COMPARISONS: Final[dict[str, Callable[[np.ndarray], np.ndarray]]] = {
    "better": lambda gains: gains > 0,
    "same": lambda gains: gains == 0,
    "worse": lambda gains: gains < 0,
}


def spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """The mean over clients, each counting equally, and the percentiles."""
    points = {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES}
    return {"mean": float(np.mean(values)), **points}


def personalise(
    run_dir: str | Path,
    *,
    epochs: int = 5,
    lr: float | None = None,
    batch: float | None = None,
    share: float = 0.2,
    fleet: str | Fleet = "local",
    **changes: Any,
) -> Personalised:
    """Fine-tune the last model of a run for every client, and judge it there. Defaults are the run's own.

    A run that was started from Python with its own task or data needs them again, as `resume` does. Runtime
    options (workers, data_dir) may be changed, and the simulated fleet. The result depends on neither.

    >>> from tempfile import TemporaryDirectory
    >>> from fedavg import Plan, run
    >>> plan = Plan(data="mnist", clients=600, C=0.01, rounds=1, workers=1)
    >>> with TemporaryDirectory() as folder:
    ...     _ = run(plan, f"{folder}/run")
    ...     found = personalise(f"{folder}/run", epochs=1)
    >>> found.metric, len(found.clients)
    ('accuracy', 600)
    """
    directory = RunDir(Path(run_dir))
    plan = directory.plan(**changes)
    start = directory.newest(plan.digest)
    if start is None:
        raise RunDirError(f"{directory.path} has no checkpoint of its plan; expected one: run it first")
    work = plan.work(max(start.round, 1))
    settings = FineTuning(epochs, batch or work.batch, lr or work.lr, plan.holdout or share)
    data = resolve_data(plan)
    held_out = _held_out(data, share, plan.seed)
    clients = _tune_all(plan, held_out, start.state.weights, settings, fleet)
    metric, direction = _compared_by(plan)
    skipped = len(held_out) - len(clients)
    return Personalised(start.round, settings, held_out is not data, metric, direction, clients, skipped)


def _held_out(data: FederatedData, share: float, seed: int) -> FederatedData:
    return data if data.held_sizes.any() else HeldOut(data, share, seed)


def _tune_all(
    plan: Plan, data: FederatedData, weights: Tensor, settings: FineTuning, where: str | Fleet
) -> tuple[Tuned, ...]:
    able = [int(k) for k in np.flatnonzero(data.held_sizes)]
    if not able:
        raise DataError(f"{data.name}: no client has examples to hold out; expected some: use a larger share")
    bare = replace(
        plan, data=data, partition=None, clients=None, holdout=0.0, algorithm="fedavg", codec="float32",
        downlink="float32", stages=(), secagg="none", dp_epsilon=None, dp_delta=None,
    )  # fmt: skip
    with closing(make_simulated(where)) as fleet:
        fleet.start(resolve(bare, fleet.open(bare), fleet.test))
        return tuple(fleet.fine_tune(weights, [TuneJob(k, settings.epochs, settings.batch, settings.lr) for k in able]))


def _compared_by(plan: Plan) -> tuple[str, bool]:
    """The metric that 'better' means, and which way is better."""
    metrics = resolve_task(plan).judged_by
    for name in ("accuracy", "loss", *metrics):
        if name in metrics and (direction := metrics[name].higher_is_better) is not None:
            return name, direction
    raise TaskError(
        f"it is not known which way is better for any of {', '.join(metrics)}; expected a metric that says so: "
        "fedavg.metrics.Mean(function, higher_is_better=True)"
    )
