"""Third-party trackers: MLflow, and Weights & Biases. Each is imported only when it is used."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, final

from fedavg.errors import FedAvgError
from fedavg.metrics.rows import Row
from fedavg.study.tracker import Tracker

#: The name of the project or experiment in either tool.
PROJECT: Final = "fedavg"
#: The tag by which a resumed run finds its entry in MLflow.
TAG: Final = "fedavg.run"


def numbers(row: Row) -> dict[str, float]:
    """The numbers of a round by name; the round itself is the step."""
    return {name: value for name, value in row.items() if isinstance(value, int | float) and name != "round"}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence a library's messages about its own dependencies, which do not help the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@final
class MLflow(Tracker):
    """A run in MLflow's store: a database file, or the address of a server (`mlflow:http://...`)."""

    def __init__(self, place: str, name: str) -> None:
        try:
            with _quiet():
                from mlflow import MlflowClient
        except ImportError:
            raise FedAvgError("mlflow is not installed; install it with: pip install 'fedavg[mlflow]'") from None
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._address = place if "://" in place else f"sqlite:///{Path(place).resolve()}"
        self._name, self._new = name, MlflowClient

    def begin(self, plan: Mapping[str, Any], after: int) -> None:
        if self._address.startswith("sqlite:///"):
            Path(self._address.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        with _quiet():
            self._client = self._new(tracking_uri=self._address)
            known = self._client.get_experiment_by_name(PROJECT)
            experiment = known.experiment_id if known else self._client.create_experiment(PROJECT)
            found = self._client.search_runs([experiment], f"tags.`{TAG}` = '{self._name}'") if after else []
            self._run = found[0].info.run_id if found else self._started(experiment, plan)
            # Repeated rounds are the same, bit for bit, so they are reported once.
            history = self._client.get_metric_history(self._run, "clients") if found else []
            self._told = max((each.step for each in history), default=0)

    def _started(self, experiment: str, plan: Mapping[str, Any]) -> str:
        run = str(self._client.create_run(experiment, run_name=self._name, tags={TAG: self._name}).info.run_id)
        for name, value in plan.items():
            self._client.log_param(run, name, value)
        return run

    def row(self, row: Row) -> None:
        if row["round"] <= self._told:
            return
        from mlflow.entities import Metric

        step = int(row["round"])
        with _quiet():
            found = [Metric(name, float(value), 0, step) for name, value in numbers(row).items()]
            self._client.log_batch(self._run, metrics=found)

    def end(self) -> None:
        with _quiet():
            self._client.set_terminated(self._run)


@final
class WeightsAndBiases(Tracker):
    """A run of Weights & Biases, offline in a folder; `wandb sync` uploads it when its owner wants to."""

    def __init__(self, place: str, name: str) -> None:
        try:
            with _quiet():
                import wandb
        except ImportError:
            raise FedAvgError("wandb is not installed; install it with: pip install 'fedavg[wandb]'") from None
        self._wandb, self._place, self._name = wandb, Path(place), name

    def begin(self, plan: Mapping[str, Any], after: int) -> None:
        self._place.mkdir(parents=True, exist_ok=True)
        wandb = self._wandb
        settings = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True)
        with _quiet():
            self._run = wandb.init(
                mode="offline",
                dir=str(self._place),
                project=PROJECT,
                name=self._name,
                id=sha256(str(self._place.resolve() / self._name).encode()).hexdigest()[:16],
                resume="allow",
                config=dict(plan),
                settings=settings,
            )

    def row(self, row: Row) -> None:
        with _quiet():
            self._run.log(numbers(row), step=int(row["round"]))

    def end(self) -> None:
        with _quiet():
            self._run.finish()
