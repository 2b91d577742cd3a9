"""Runs for other tools: live during training, or afterwards from their record. Columns are named as in `flat_rows`."""

import csv
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, Final, final

from fedavg.errors import DiskError, FedAvgError, PlanError
from fedavg.files import write_atomically
from fedavg.metrics.rows import Row
from fedavg.plan import Plan
from fedavg.runlog.frames import flat_rows, frame
from fedavg.runlog.rundir import RunDir
from fedavg.server import Event, Round, event_row
from fedavg.study.tracker import Tracker


@final
class JsonLinesTracker(Tracker):
    """A line of JSON for each round, written at once."""

    def __init__(self, place: str, name: str) -> None:
        self._path = Path(place)

    def begin(self, plan: Mapping[str, Any], after: int) -> None:
        kept = self._path.read_text().splitlines()[:after] if after and self._path.exists() else []
        write_atomically(self._path, "".join(f"{line}\n" for line in kept).encode())

    def row(self, row: Row) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise DiskError(f"cannot write {self._path}: {error.strerror}; free space, then resume") from error

    def end(self) -> None:
        pass


@final
class TensorBoard(Tracker):
    """Event files that `tensorboard --logdir` reads."""

    def __init__(self, place: str, name: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise FedAvgError(
                "tensorboard is not installed; install it with: pip install 'fedavg[tensorboard]'"
            ) from None
        self._new: Callable[..., Any] = SummaryWriter
        self._path = Path(place)

    def begin(self, plan: Mapping[str, Any], after: int) -> None:
        self._writer = self._new(str(self._path), purge_step=after + 1)
        options = "\n".join(f"| {name} | {value} |" for name, value in plan.items())
        self._writer.add_text("plan", f"| option | value |\n|---|---|\n{options}", after)

    def row(self, row: Row) -> None:
        for name, value in row.items():
            if isinstance(value, int | float) and name != "round":
                self._writer.add_scalar(name.replace(".", "/"), value, row["round"])
        self._writer.flush()

    def end(self) -> None:
        self._writer.close()


def _mlflow(place: str, name: str) -> Tracker:
    from fedavg.study.trackers import MLflow

    return MLflow(place, name)


def _wandb(place: str, name: str) -> Tracker:
    from fedavg.study.trackers import WeightsAndBiases

    return WeightsAndBiases(place, name)


#: Trackers that can follow a run live, given a place and the run's name; each with its default place in the directory.
TRACKERS: Final[Mapping[str, tuple[Callable[[str, str], Tracker], str]]] = {
    "jsonl": (JsonLinesTracker, "track.jsonl"),
    "tensorboard": (TensorBoard, "tensorboard"),
    "mlflow": (_mlflow, "mlflow.db"),
    "wandb": (_wandb, "wandb"),
}


def new_tracker(text: str, directory: Path) -> Tracker:
    """The tracker that a text names: NAME, or NAME:PLACE to write outside the run directory."""
    name, _, place = text.partition(":")
    if name not in TRACKERS:
        raise PlanError(f"--track: got '{text}'; expected {', '.join(TRACKERS)}, or NAME:PLACE")
    make, usual = TRACKERS[name]
    return make(place or str(directory / usual), directory.resolve().name)


@contextmanager
def tracking(trackers: Sequence[Tracker], plan: Plan) -> Iterator[Callable[[Event], None]]:
    """A watcher that passes every event to the trackers; they end with the block, however it ends."""
    with ExitStack() as begun:

        def watch(event: Event) -> None:
            for tracker in trackers:
                if isinstance(event, Round):
                    tracker.row(flat_rows([event_row(event)])[0])
                else:
                    tracker.begin(plan.to_dict(), event.round)
                    begun.callback(tracker.end)

        yield watch


def export_run(run_dir: Path, to: str, out: Path | None = None) -> Path:
    """Write the rounds of a run as a table (csv, parquet) or for a tracker; returns where.

    The place is RUN/metrics.csv and the like, or for a tracker the one that it would write to live.
    """
    directory = RunDir(run_dir)
    if not directory.metrics_path.exists():
        raise FedAvgError(
            f"{run_dir} is not a run directory: it has no metrics.jsonl; expected one made by 'fedavg run'"
        )
    rows = flat_rows(directory.rows())
    if to in TABLES:
        place = out or run_dir / f"metrics.{to}"
        TABLES[to](rows, place)
        return place
    place = out or run_dir / TRACKERS[to][1]
    tracker = new_tracker(f"{to}:{place}", run_dir)
    tracker.begin(_options(run_dir / "plan.toml"), 0)
    for row in rows:
        tracker.row(row)
    tracker.end()
    return place


def _options(file: Path) -> dict[str, Any]:
    """The plan as written: its record does not need the user's own parts."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FedAvgError(f"{file} cannot be read: {error}; expected it as 'fedavg run' wrote it") from None


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_csv(rows: Sequence[Row], path: Path) -> None:
    text = StringIO(newline="")
    writer = csv.DictWriter(text, _columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def _write_parquet(rows: Sequence[Row], path: Path) -> None:
    from io import BytesIO

    buffer = BytesIO()
    frame(rows).to_parquet(buffer, index=False)
    write_atomically(path, buffer.getvalue())


#: Formats that a record can be written in directly.
TABLES: Final[Mapping[str, Callable[[Sequence[Row], Path], None]]] = {"csv": _write_csv, "parquet": _write_parquet}
