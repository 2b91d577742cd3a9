"""The best model of a run by one metric, kept beside the last: best.safetensors, and best.json with its round."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from fedavg.engine.model import Model
from fedavg.errors import PlanError
from fedavg.files import write_atomically
from fedavg.metrics.goal import Best, Goal, improved
from fedavg.metrics.metric import Metric
from fedavg.runlog.seals import sealed, unsealed
from fedavg.runlog.summary import curve
from fedavg.setup import Setup

log = logging.getLogger("fedavg.run")


def best_by(metric: str | None, watched: Goal, metrics: Mapping[str, Metric]) -> Goal:
    """What the best model is chosen by: a metric of the task, or the one that the run is watched by."""
    if metric is None:
        return Goal(watched.metric, watched.higher_is_better)
    if metric not in metrics:
        raise PlanError(f"keep_best: got '{metric}'; expected a metric of the task: {', '.join(metrics)}")
    direction = metrics[metric].higher_is_better
    if direction is None:
        raise PlanError(
            f"keep_best: got '{metric}', and it is not known whether higher is better; expected a metric that says "
            "so: fedavg.Mean(function, higher_is_better=True)"
        )
    return Goal(metric, direction)


def model_of(setup: Setup, weights: Tensor) -> Model:
    """The run's module with these weights."""
    model = Model(setup.task, setup.plan.seed)
    model.load(weights)
    return model


def model_file(model: Model) -> bytes:
    """A model as a run stores it, as safetensors; the header says which frozen weights it belongs to."""
    fingerprint = model.frozen.fingerprint
    return save(model.trained_tensors(), {"frozen": fingerprint} if fingerprint else None)


@dataclass(frozen=True)
class BestModel:
    """The best model: its round, the metric that chose it, and its tensors by name."""

    metric: str
    value: float
    round: int
    tensors: dict[str, Tensor]


class BestKeeper:
    """Remembers the best model as rounds pass; `save` writes it if it has changed."""

    def __init__(self, setup: Setup, goal: Goal, rows: Sequence[dict[str, Any]], folder: Path | None) -> None:
        """`rows`: the rounds that a resumed run begins with; their best model is in the folder, unless it was lost."""
        self._setup, self._goal, self._folder = setup, goal, folder
        self._weights: Tensor | None = None
        self._saved = True
        self._best: Best | None = None
        for round, value in zip(*curve(rows, goal.metric), strict=True):
            self._best = improved(goal, self._best, round, value)
        if folder is not None and rows:
            read_best(folder)  # warns if it is damaged

    def note(self, row: dict[str, Any], weights: Tensor) -> None:
        """One more round, and the model after it."""
        if self._goal.higher_is_better is None:
            return
        for round, value in zip(*curve([row], self._goal.metric), strict=True):
            best = improved(self._goal, self._best, round, value)
            if best is not self._best:
                self._best, self._weights, self._saved = best, weights, False

    def save(self) -> None:
        if self._folder is None or self._saved or self._weights is None or self._best is None:
            return
        data = model_file(model_of(self._setup, self._weights))
        note = {"metric": self._goal.metric, "value": self._best.value, "round": self._best.round}
        write_atomically(self._folder / "best.safetensors", data)
        document = sealed({**note, "model": sha256(data).hexdigest()})
        write_atomically(self._folder / "best.json", (json.dumps(document, indent=2) + "\n").encode())
        self._saved = True

    def found(self) -> BestModel | None:
        """The best model; None if no round was judged, or if it was lost."""
        if self._best is None or self._goal.higher_is_better is None:
            return None
        if self._weights is not None:
            tensors = model_of(self._setup, self._weights).trained_tensors()
            return BestModel(self._goal.metric, self._best.value, self._best.round, tensors)
        kept = read_best(self._folder) if self._folder else None
        if kept is None or (kept.metric, kept.round) != (self._goal.metric, self._best.round):
            log.warning("the model of round %d, the best by %s, is lost", self._best.round, self._goal.metric)
            return None
        return kept


def read_best(folder: Path) -> BestModel | None:
    """The best model that a run directory holds; None if there is none, or what is there is damaged."""
    try:
        note = unsealed(json.loads((folder / "best.json").read_bytes()))
        data = (folder / "best.safetensors").read_bytes()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s is damaged: %s; the best model is not used", folder / "best.json", error)
        return None
    if sha256(data).hexdigest() != note["model"]:
        log.warning("%s is damaged; the best model is not used", folder / "best.safetensors")
        return None
    return BestModel(note["metric"], note["value"], note["round"], load(data))
