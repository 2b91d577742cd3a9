"""Structured logs: one JSON object per line that says what happened, to what, and nothing secret."""

import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf
from threading import Lock
from time import monotonic
from types import TracebackType
from typing import Any, Final

from fedavg.errors import FedAvgError

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        try:
            return json.dumps(line, default=str, allow_nan=False)
        except ValueError:  # JSON has no NaN or infinity, which a loss may be
            plain = json.loads(json.dumps(line, default=str), parse_constant=str)
            return json.dumps(plain)


class Seldom:
    """Logs a problem that may affect every request while it lasts: at once, then at most every `pause_s` seconds.

    Each line says how often it happened since the last one.
    """

    def __init__(self, log: logging.Logger, event: str, level: int = logging.WARNING, pause_s: float = 10.0) -> None:
        self._log, self._event, self._level, self._pause_s = log, event, level, pause_s
        self._lock = Lock()
        self._next, self._times = -inf, 0

    def tell(self, detail: object) -> None:
        with self._lock:
            self._times += 1
            if (now := monotonic()) < self._next:
                return
            times, self._times, self._next = self._times, 0, now + self._pause_s
        self._log.log(self._level, self._event, extra={"detail": str(detail), "times": times})


class SeldomBy:
    """Logs an event that many sources may repeat: for each source at once, then at most every `pause_s` seconds.

    At most `most` sources are remembered; beyond that, the least recently seen are forgotten.
    """

    def __init__(self, log: logging.Logger, event: str, pause_s: float = 10.0, most: int = 10_000) -> None:
        self._log, self._event, self._pause_s, self._most = log, event, pause_s, most
        self._lock = Lock()
        self._told: dict[object, tuple[float, int]] = {}

    def tell(self, source: object, level: int, **what: object) -> None:
        """The line says how often it happened since the last line for this source."""
        with self._lock:
            until, times = self._told.pop(source, (-inf, 0))
            now, times = monotonic(), times + 1
            silent = now < until
            self._told[source] = (until, times) if silent else (now + self._pause_s, 0)
            if len(self._told) > self._most:
                del self._told[next(iter(self._told))]
        if not silent:
            self._log.log(level, self._event, extra={**what, "times": times})


class StderrLines(logging.StreamHandler[Any]):
    """Writes to the current stderr, even if it is replaced later."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(JsonLines())

    @property
    def stream(self) -> Any:
        return sys.stderr


def log_to_stderr(level: int = logging.INFO) -> None:
    """Make every line on stderr JSON: those of the fleet and of libraries, warnings, and tracebacks."""
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, StderrLines)]:
        root.removeHandler(handler)
    root.addHandler(StderrLines())
    logging.getLogger("fedavg").setLevel(level)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # anyone can make it warn by sending invalid requests
    logging.captureWarnings(True)
    sys.excepthook = lambda *error: _crash("the main thread", error)
    threading.excepthook = lambda hook: _crash(
        hook.thread.name if hook.thread else "a thread",
        (hook.exc_type, hook.exc_value or hook.exc_type(), hook.exc_traceback),
    )
    sys.unraisablehook = lambda hook: _crash(
        repr(hook.object)[:200], (hook.exc_type, hook.exc_value or hook.exc_type(), hook.exc_traceback)
    )


def _crash(where: str, error: tuple[type[BaseException], BaseException, TracebackType | None]) -> None:
    logging.getLogger("fedavg").critical("uncaught", exc_info=error, extra={"where": where})


@contextmanager
def told_in_the_log(*ordinary: type[FedAvgError]) -> Iterator[None]:
    """An error that ends the program becomes a line in the log, and is not reported in another way.

    `ordinary` errors are expected ways to end: they are logged as information.
    """
    try:
        yield
    except FedAvgError as error:
        level = logging.INFO if isinstance(error, ordinary) else logging.CRITICAL
        what = {"reason": type(error).__name__, "detail": str(error)}
        logging.getLogger("fedavg").log(level, "ended", extra=what)
        error.told = True
        raise
