"""When each client was seen, with which version, and how often it failed: for operators, not for decisions.

It is kept in memory and written to the database now and then: at once when an operator asks, otherwise a failure within
a minute and mere presence once an hour, so that ten thousand clients cost a few writes per second.
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from threading import Lock
from time import monotonic, time
from typing import Final

from fedavg.fleets.http.server.logs import Seldom
from fedavg.fleets.http.server.store import StoreError
from fedavg.fleets.http.server.store.sightings import News, Sighting, SightingRows, merged

#: Seconds between writes, and seconds after which a client that was merely present is written again.
KEEP_S: Final = 60.0
SEEN_S: Final = 3600
#: A client's version string is stored and shown to operators, so it is limited to a little visible ASCII.
_VERSION: Final = re.compile(r"[^ -~]")
_LONGEST: Final = 64

_unwritten = Seldom(logging.getLogger("fedavg.fleet"), "cannot note when clients were seen")


@dataclass
class _Known:
    news: News
    #: When its last sighting was written.
    written: int = 0
    version: str = ""
    #: Whether failures may be in the database: those of an earlier process are not known here.
    failing: bool = True


class Sightings:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock, self._writing = Lock(), Lock()
        self._known: dict[int, _Known] = {}
        self._unwritten: set[int] = set()
        self._next = -inf
        #: Where sightings are stored; None: nowhere.
        self.rows: SightingRows | None = None

    def see(self, k: int, version: str) -> None:
        """Note that a client asked for work."""
        now, version = int(time()), _VERSION.sub("?", version)[:_LONGEST]
        with self._lock:
            known = self._of(k)
            known.news = replace(known.news, seen=now, version=version)
            if abs(now - known.written) >= SEEN_S or version != known.version:
                self._unwritten.add(k)

    def failed(self, clients: Iterable[int], why: str) -> None:
        """Note that the updates of these clients do not count, and why."""
        with self._lock:
            for k in clients:
                known = self._of(k)
                known.news = replace(known.news, failures=known.news.failures + 1, failure=why)
                known.failing = True
                self._unwritten.add(k)

    def counted(self, clients: Iterable[int]) -> None:
        """Note that the updates of these clients are part of a round."""
        with self._lock:
            for k in clients:
                known = self._of(k)
                known.news = replace(known.news, counted=True, failures=0, failure="")
                if known.failing:  # otherwise there is nothing to reset
                    self._unwritten.add(k)
                known.failing = False

    def _of(self, k: int) -> _Known:
        return self._known.setdefault(k, _Known(News(0, "")))

    @property
    def due(self) -> bool:
        """Whether it is time to write; true for one caller only."""
        with self._lock:
            if (now := monotonic()) < self._next:
                return False
            self._next = now + KEEP_S
            return True

    def keep(self) -> None:
        """Write what is new. If the database does not answer, try again later."""
        if self.rows is None:
            return
        with self._writing:
            with self._lock:
                news = {k: self._known[k].news for k in self._unwritten}
                for k in news:
                    self._known[k].news = News(news[k].seen, news[k].version)
                self._unwritten = set()
            if not news:
                return
            try:
                self.rows.add(news)
            except StoreError as error:
                _unwritten.tell(error)
                self._put_back(news)
                return
            with self._lock:
                for k, new in news.items():
                    self._known[k].written, self._known[k].version = new.seen, new.version

    def _put_back(self, news: dict[int, News]) -> None:
        with self._lock:
            for k, old in news.items():
                known = self._known[k]
                new = known.news
                if not new.counted:
                    known.news = replace(
                        new,
                        counted=old.counted,
                        failures=old.failures + new.failures,
                        failure=new.failure or old.failure,
                    )
                self._unwritten.add(k)

    def all(self) -> dict[int, Sighting]:
        """What is known about each client, here or in the shared database."""
        self.keep()
        found = self.rows.all() if self.rows else {}
        with self._lock:
            for k, known in self._known.items():
                found[k] = merged(found.get(k, Sighting()), known.news)
        return found
