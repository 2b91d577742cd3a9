"""Structured logs: a JSON object a line, with what happened, to what, and nothing secret."""

import json
import logging
import sys
from datetime import UTC, datetime
from math import inf
from threading import Lock
from time import monotonic
from typing import Final

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
        return json.dumps(line, default=str)


class Seldom:
    """Something that may go wrong for every request while it lasts: told at once, then every so many seconds.

    The line says how often it happened since the last one.
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


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send the fleet's log, and what the HTTP server itself has to say, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, least in (("fedavg", level), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(least)
        logger.propagate = False
