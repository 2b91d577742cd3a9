"""Where a device's examples come from. They are read again before each poll, so their number may change."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from fedavg.data import check, load
from fedavg.data.own import as_examples, file_stamp, read_examples
from fedavg.errors import DataError, FedAvgError, PlanError
from fedavg.plan import Plan
from fedavg.types import Examples

log = logging.getLogger("fedavg.device")

#: The names of the labels, in the order of their numbers, as a task declares them.
Classes = Sequence[str] | None


class Source(ABC):
    """The examples of one device, for one task."""

    @abstractmethod
    def read(self, classes: Classes) -> Examples:
        """The examples as they are now; words as labels are numbered by `classes`."""

    def check(self, plan: Plan) -> None:
        """Refuse a plan that asks for other examples than these; by default no plan is refused."""
        return


@final
class GivenExamples(Source):
    """Examples from Python, or a function that gives them whenever it is called.

    They are an `Examples`, a pair (x, y) or a PyTorch dataset. If a function returns the same object as before, it is
    not converted again.
    """

    def __init__(self, given: Any) -> None:
        self._call: Callable[[], Any] = given if _is_function(given) else lambda: given
        self._last: tuple[Any, Classes] | None = None
        self._examples: Examples | None = None

    def read(self, classes: Classes) -> Examples:
        given = self._call()
        if self._examples is None or self._last is None or self._last[0] is not given or self._last[1] != classes:
            self._examples = as_examples(given, classes, "this device's data")
            self._last = (given, classes)
        return self._examples


@final
class Files(Source):
    """A file, or a folder of files: read again when one of them has changed.

    After the first successful read, a file that is half written changes nothing until it is complete.
    """

    def __init__(self, path: Path, label: str) -> None:
        self._path, self._label = path, label
        self._stamp: object = None
        self._classes: Classes = None
        self._examples: Examples | None = None

    def read(self, classes: Classes) -> Examples:
        stamp = file_stamp(self._path)
        if self._examples is not None and (stamp, classes) == (self._stamp, self._classes):
            return self._examples
        try:
            self._examples = read_examples(self._path, self._label, classes)
        except FedAvgError as error:
            if self._examples is None or classes != self._classes:
                raise
            log.warning("data not read; using what was read before", extra={"detail": str(error)})
        self._stamp, self._classes = stamp, classes
        return self._examples


@final
class Share(Source):
    """One client's part of a named data set, as the simulator deals it."""

    def __init__(
        self, name: str, k: int, clients: int, partition: str | None, seed: int, data_dir: Path | None
    ) -> None:
        self._name, self._clients, self._partition, self._seed = name, clients, partition, seed
        self._examples = load(name, partition, clients, seed, data_dir).client(k)

    def read(self, classes: Classes) -> Examples:
        return self._examples

    def check(self, plan: Plan) -> None:
        """The plan must deal the share in this way, or some examples would be on two devices and others on none."""
        if plan.data != self._name:
            return
        own, planned = (str(check(self._name, p, self._clients)) for p in (self._partition, plan.partition))
        for option, got, expected in (
            ("--partition", own, planned),
            ("--seed", self._seed, plan.seed),
            ("--share K/N", self._clients, plan.clients),
        ):
            if got != expected and expected is not None:
                raise PlanError(f"{option}: got {got}, but the server's plan deals '{plan.data}' out by {expected}")


def source_of(given: Any) -> Source:
    """The user's data as a source."""
    if isinstance(given, Source):
        return given
    if isinstance(given, str | Path):
        return Files(Path(given), "label")
    return GivenExamples(given)


def read_some(source: Source, classes: Classes) -> Examples:
    """The examples before a device enrols; there must be at least one."""
    examples = source.read(classes)
    if not len(examples):
        raise DataError("this device has no examples; expected one at least before it enrols")
    return examples


def _is_function(given: Any) -> bool:
    return callable(given) and not hasattr(given, "__getitem__")
