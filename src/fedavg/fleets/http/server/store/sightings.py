"""What is known about clients besides enrolment: when they were last seen, what they run, how often they failed."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedavg.fleets.http.server.store.connections import Connections
from fedavg.fleets.http.server.store.schema import sightings
from fedavg.fleets.http.server.store.sealed import insert_row, one_row, rows, update_rows


@dataclass(frozen=True)
class Sighting:
    """`seen` is in seconds since 1970, 0 for never; `failures` counts them in a row, `failure` is the last reason."""

    seen: int = 0
    version: str = ""
    failures: int = 0
    failure: str = ""


@dataclass(frozen=True)
class News:
    """What was noticed about a client since the last write. If `counted`, earlier failures are forgotten."""

    seen: int
    version: str
    counted: bool = False
    failures: int = 0
    failure: str = ""


class SightingRows:
    """The table of sightings. Thread-safe; several processes may add to it."""

    def __init__(self, connections: Connections) -> None:
        self._db = connections

    def all(self) -> dict[int, Sighting]:
        with self._db.read("read when clients were seen") as connection:
            found = rows(connection, sightings)
        return {row.k: Sighting(row.seen, row.version, row.failures, row.failure) for row in found}

    def add(self, news: Mapping[int, News]) -> None:
        """Write the news in one transaction."""
        with self._db.write("note when clients were seen") as connection:
            for k, new in sorted(news.items()):
                row = one_row(connection, sightings, sightings.c.k == k)
                before = Sighting() if row is None else Sighting(row.seen, row.version, row.failures, row.failure)
                if row is None:
                    insert_row(connection, sightings, k=k, **vars(merged(before, new)))
                else:
                    update_rows(connection, sightings, sightings.c.k == k, **vars(merged(before, new)))


def merged(before: Sighting, new: News) -> Sighting:
    failures = (0 if new.counted else before.failures) + new.failures
    failure = new.failure if new.failures else before.failure if failures else ""
    return Sighting(max(before.seen, new.seen), new.version or before.version, failures, failure)
