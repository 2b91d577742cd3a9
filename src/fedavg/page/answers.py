"""Answers to the page's requests by path: the same for a browser over HTTP and for an exported file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from fedavg.errors import FedAvgError
from fedavg.page import views
from fedavg.page.library import Library
from fedavg.page.partitions import Partitions
from fedavg.page.record import RunFiles
from fedavg.page.views import Answer
from fedavg.study.axes import AXES

if TYPE_CHECKING:  # the import needs packages of the server extra
    from fedavg.page.fleet import LiveFleet


class NotThere(FedAvgError):
    """The page asked for something that does not exist, or no longer exists."""


class Shown:
    """All that the page shows: the runs below a folder, a live fleet, or both."""

    def __init__(self, library: Library | None, fleet: "LiveFleet | None" = None) -> None:
        self._library, self._fleet = library, fleet
        self.closed = False
        self._partitions = Partitions()

    @property
    def version(self) -> int:
        """Grows when something is new."""
        return sum(each.version for each in (self._library, self._fleet) if each)

    def start(self) -> None:
        """Begin to watch."""
        for each in (self._library, self._fleet):
            if each:
                each.start()

    def stop(self) -> None:
        for each in (self._library, self._fleet):
            if each:
                each.stop()

    def answer(self, query: str) -> Answer:
        """The answer to a path with its parameters, as in 'curves?x=round&y=test.accuracy'."""
        path, _, text = query.partition("?")
        parameters = parse_qs(text)
        match path.split("/"):
            case ["index"]:
                return self._index()
            case ["curves"]:
                return self._curves(parameters)
            case ["run", id, "round", number] if number.isascii() and number.isdigit():
                return self._round(id, int(number[:9]))
            case ["run", id, "clients"]:
                with self._records() as records:
                    return views.clients(_one(records, id))
            case ["run", id, "world"]:
                with self._records() as records:
                    return _known(views.world(_one(records, id), parameters.get("day", ["0"])[0]))
            case ["fleet"] if self._fleet:
                return self._fleet.answer()
            case ["run", id, "partition"]:
                return self._partition(id)
        raise NotThere(f"there is no '{path}'")

    def _index(self) -> Answer:
        shown = {"fleet": self._fleet is not None, "library": self._library is not None}
        if self._library is None:
            return views.index([], Path()) | shown
        with self._library.looking() as records:
            return views.index(list(records.values()), self._library.root) | shown

    def _curves(self, parameters: Mapping[str, Sequence[str]]) -> Answer:
        x, y = parameters.get("x", ["round"])[0], parameters.get("y", [""])[0]
        if x not in AXES:
            raise NotThere(f"x: got '{x}'; expected one of {', '.join(AXES)}")
        wanted = parameters.get("run", [])
        with self._records() as records:
            return views.drawn([records[id] for id in wanted if id in records], x, y)

    def _round(self, id: str, number: int) -> Answer:
        with self._records() as records:
            found = views.one_round(_one(records, id), number)
        return _known(found, f"round {number} is not on record")

    def _partition(self, id: str) -> Answer:
        """Reading the data is slow, so it happens outside the records' lock."""
        with self._records() as records:
            plan, identity = dict(_one(records, id).plan), dict(_one(records, id).identity)
        return self._partitions.of(plan, identity)

    def _records(self) -> Any:
        if self._library is None:
            raise NotThere("no runs are shown here")
        return self._library.looking()


def _known(answer: Answer | None, problem: str = "this run has no simulated clock") -> Answer:
    if answer is None:
        raise NotThere(problem)
    return answer


def _one(records: Mapping[str, RunFiles], id: str) -> RunFiles:
    if id not in records:
        raise NotThere("this run is not there any more")
    return records[id]
