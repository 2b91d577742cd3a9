"""What the page asks for by its paths: the same for a browser over HTTP and for a file that is written once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fedavg.errors import FedAvgError
from fedavg.page import views
from fedavg.page.compare import AXES
from fedavg.page.library import Library
from fedavg.page.record import Record

Answer = dict[str, Any]


class NotThere(FedAvgError):
    """The page asked for something that is not there, or not any more."""


class Shown:
    """All that the page shows: the runs below a folder, a live fleet, or both."""

    def __init__(self, library: Library | None) -> None:
        self._library = library
        self.closed = False

    @property
    def version(self) -> int:
        """Grows when something is new."""
        return self._library.version if self._library else 0

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
        raise NotThere(f"there is no '{path}'")

    def _index(self) -> Answer:
        if self._library is None:
            return views.index([], Path()) | {"fleet": True}
        with self._library.looking() as records:
            return views.index(list(records.values()), self._library.root)

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
        if found is None:
            raise NotThere(f"round {number} is not on record")
        return found

    def _records(self) -> Any:
        if self._library is None:
            raise NotThere("no runs are shown here")
        return self._library.looking()


def _one(records: Mapping[str, Record], id: str) -> Record:
    if id not in records:
        raise NotThere("this run is not there any more")
    return records[id]
