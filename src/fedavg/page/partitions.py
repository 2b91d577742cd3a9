"""A picture of what the clients of a run hold: computed from the plan, if the data is on this machine.

Nothing is downloaded, and no code that a plan names is run: a run may come from somebody else. The clients of a
private plan are not shown.
"""

from collections.abc import Mapping
from json import dumps
from pathlib import Path
from threading import Lock
from typing import Any, Final

from fedavg.errors import FedAvgError
from fedavg.page.views import BARS, Answer, evenly

#: With more clients than this, labels are not counted: all examples of all clients would have to be read.
MOST_COUNTED: Final = 5000
#: The options of a plan that decide which client holds which examples.
_DECIDES: Final = ("data", "partition", "clients", "holdout", "seed", "data_dir")


class Partitions:
    """Remembers the partitions that it has read, and reads one at a time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[str, Answer] = {}

    def of(self, plan: Mapping[str, Any], identity: Mapping[str, Any]) -> Answer:
        """The picture's numbers, or why there is none. Plans with the same partition share them, if allowed."""
        try:
            problem = _refused(plan)
            return {"missing": problem} if problem else self._remembered(plan, identity.get("data"))
        except FedAvgError as error:
            return {"missing": str(error)}
        except (KeyError, TypeError, ValueError, AttributeError):  # a plan from another tool or version
            return {"missing": "Its plan.toml is not one that this version can read."}

    def _remembered(self, plan: Mapping[str, Any], fingerprint: str | None) -> Answer:
        key = dumps([*(plan.get(name) for name in _DECIDES), fingerprint], default=str)
        with self._lock:
            if key not in self._known:
                self._known[key] = _described(plan, fingerprint)
            return self._known[key]


def _described(plan: Mapping[str, Any], fingerprint: str | None) -> Answer:
    """Imports PyTorch, which the rest of the page does not need."""
    from fedavg.data import HeldOut, load
    from fedavg.data.show import PartitionTable, describe

    data = load(plan["data"], plan.get("partition"), plan.get("clients"), plan["seed"], _folder(plan))
    data = HeldOut(data, plan["holdout"], plan["seed"]) if plan.get("holdout") else data
    if fingerprint not in (None, data.fingerprint):
        return {"missing": "The data on this machine is not what the run was started on."}
    table = describe(data) if len(data) <= MOST_COUNTED else PartitionTable(data.name, data.sizes, *_no_labels(data), 0)
    return _pictured(table)


def _no_labels(data: Any) -> tuple[Any, Any]:
    import numpy as np

    return np.empty(0, np.int64), np.empty((len(data), 0), np.int64)


def _refused(plan: Mapping[str, Any]) -> str | None:
    """Why there is no picture: it would reveal too much, run code that a plan names, or download something."""
    from fedavg.data import dataset_named, is_named
    from fedavg.data.download import complete
    from fedavg.data.location import data_directory
    from fedavg.data.partition import Partition
    from fedavg.specs import is_import
    from fedavg.stages import STAGES

    if plan.get("secagg", "none") != "none" or _is_noised(plan.get("stages", ()), STAGES):
        return "Not shown: the plan keeps single clients from view."
    if not is_named(str(plan.get("data", ""))) or is_import(str(plan.get("partition") or ""), Partition):
        return "The data is the user's own: the page runs no code that a plan names."
    dataset = dataset_named(plan["data"])
    if not dataset.built_in and not complete(dataset, data_directory(_folder(plan))):
        return f"The data set is not on this machine. Fetch it with: fedavg data get {dataset.name}"
    return None


def _folder(plan: Mapping[str, Any]) -> Path | None:
    return Path(plan["data_dir"]) if plan.get("data_dir") else None


def _is_noised(stages: Any, known: Mapping[str, Any]) -> bool:
    """True if a stage hides clients' numbers, or is unknown and so may."""
    names = [str(stage).partition(":")[0] for stage in stages]
    return any(name not in known or known[name].hides_metrics for name in names)


def _pictured(table: Any) -> Answer:
    from fedavg.data.show import summary

    shown = evenly(range(len(table.sizes)), BARS)
    found = summary(table) | {"shown": shown, "sizes": table.sizes[shown].tolist()}
    if len(table.labels):
        found |= {"labels": table.labels.tolist(), "counts": table.counts[shown].tolist()}
    return found
