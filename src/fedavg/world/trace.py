"""Files that say when clients are there and what their devices can do: JSON lines or CSV.

    {"client": 0, "from": 79200, "to": 108000, "speed": 50, "up": 0.5, "down": 4, "latency": 0.05, "group": 1}

A row has `client` (whole numbers from 0, none left out). `from` and `to` are seconds from the first midnight UTC; a
client has as many rows as intervals, in any order. A client that is never there has one row without them. `speed`
(examples/s), `up` and `down` (MB/s), `latency` (s) and `group` belong to the client: each is given once, or the same
in all its rows. In CSV the first line names the columns, and what is unknown is left empty.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from math import isfinite, nan
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedavg.errors import DataError
from fedavg.world.presence import DAY_S

COLUMNS: Final = ("client", "from", "to", "speed", "up", "down", "latency", "group")
#: The columns that belong to a client, with what a row's number is multiplied by.
_OWN: Final = {"speed": 1.0, "up": 1e6, "down": 1e6, "latency": 1.0, "group": 1.0}


@dataclass(frozen=True)
class Trace:
    """A trace in arrays. The intervals of client k are the rows `first[k]` to `first[k + 1]` of `starts` and `ends`, in
    rising order; the others have shape (K,), with NaN where the file says nothing."""

    first: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    speed: np.ndarray
    up: np.ndarray
    down: np.ndarray
    latency: np.ndarray
    groups: np.ndarray
    fingerprint: str

    @property
    def period_s(self) -> float:
        """The time after which it repeats: its last end, rounded up to whole days for a trace of more than a day, so
        that hours of the day stay the same."""
        last = float(self.ends.max(initial=0.0))
        return float(np.ceil(last / DAY_S) * DAY_S) if last > DAY_S else last


def read_trace(path: str | Path) -> Trace:
    """The trace in a file; an error names its line."""
    try:
        state = Path(path).stat()
        return _read(str(path), state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise DataError(f"world trace: cannot read {path}: {error.strerror}; expected JSON lines or CSV") from None


def write_trace(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as JSON lines, without None values; returns how many there were."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({name: row[name] for name in COLUMNS if row.get(name) is not None}) + "\n")
            count += 1
    return count


@lru_cache(maxsize=4)
def _read(path: str, _changed: int, _size: int) -> Trace:
    content = Path(path).read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"world trace: {path} is not text in UTF-8; expected JSON lines or CSV") from None
    rows = _csv_rows(path, text) if path.lower().endswith(".csv") else _json_rows(path, text)
    return _trace(path, rows, blake2b(content, digest_size=8).hexdigest())


def _json_rows(path: str, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise _bad(
                path, number, "this is not a JSON object", 'one object a line, as {"client": 0, "from": 0, "to": 9}'
            )
        yield number, row


def _csv_rows(path: str, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(text.splitlines())
    for row in reader:
        if None in row or None in row.values():
            raise _bad(path, reader.line_num, "not as many fields as columns", "one field for each column")
        yield reader.line_num, {name: value for name, value in row.items() if value != ""}


class _Builder:
    """What has been read so far."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.spans: dict[int, list[tuple[float, float, int]]] = {}
        self.own: dict[str, dict[int, float]] = {name: {} for name in _OWN}

    def add(self, line: int, row: Mapping[str, Any]) -> None:
        unknown = sorted(set(row) - set(COLUMNS))
        if unknown:
            raise _bad(self._path, line, f"unknown column '{unknown[0]}'", f"only {', '.join(COLUMNS)}")
        client = self._whole(line, row, "client")
        spans = self.spans.setdefault(client, [])
        if ("from" in row) != ("to" in row):
            raise _bad(self._path, line, "one of 'from' and 'to'", "both, or neither for a client that is never there")
        if "from" in row:
            start, end = self._number(line, row, "from"), self._number(line, row, "to")
            if not 0 <= start < end:
                raise _bad(self._path, line, f"from {start:g} to {end:g}", "0 <= from < to, in seconds")
            spans.append((start, end, line))
        for name, unit in _OWN.items():
            if name in row:
                value = self._whole(line, row, name) if name == "group" else self._number(line, row, name) * unit
                self._keep(line, name, client, value)

    def _keep(self, line: int, name: str, client: int, value: float) -> None:
        if value < 0 or (value == 0 and name in ("speed", "up", "down")):
            raise _bad(self._path, line, f"{name} {value:g}", "a number above 0 (latency and group: from 0)")
        if self.own[name].setdefault(client, value) != value:
            raise _bad(self._path, line, f"another {name} for client {client} than before", "one for each client")

    def _number(self, line: int, row: Mapping[str, Any], name: str) -> float:
        try:
            value = nan if isinstance(row[name], bool) else float(row[name])
        except (TypeError, ValueError):
            value = nan
        if not isfinite(value):
            raise _bad(self._path, line, f"{name} {row[name]!r}", "a finite number")
        return value

    def _whole(self, line: int, row: Mapping[str, Any], name: str) -> int:
        text = str(row.get(name, "")).strip()
        if not text.isdecimal():
            raise _bad(self._path, line, f"{name} {text!r}", "a whole number from 0")
        return int(text)


def _trace(path: str, rows: Iterable[tuple[int, Mapping[str, Any]]], fingerprint: str) -> Trace:
    built = _Builder(path)
    for line, row in rows:
        built.add(line, row)
    clients = len(built.spans)
    missing = next((k for k in range(clients) if k not in built.spans), None)
    if not clients or missing is not None:
        said = f"clients up to {max(built.spans)}, but none with number {missing}" if clients else "no row"
        raise DataError(
            f"world trace: {path} has {said}; expected all numbers from 0 on, and for a client that is never there a "
            "row without 'from' and 'to'"
        )
    ordered = [sorted(built.spans[k]) for k in range(clients)]
    for k, spans in enumerate(ordered):
        for (_, end, _), (start, _, line) in pairwise(spans):
            if start < end:
                raise _bad(
                    path, line, f"client {k} from {start:g}, while it is still there", "no intervals that overlap"
                )
    ordered = [_merged(spans) for spans in ordered]
    if not any(ordered):
        raise DataError(f"world trace: {path} has nobody who is ever there; expected an interval, 'from' and 'to'")
    flat = [span for spans in ordered for span in spans]
    own = {name: np.array([values.get(k, nan) for k in range(clients)]) for name, values in built.own.items()}
    return Trace(
        first=np.concatenate([[0], np.cumsum([len(spans) for spans in ordered])]).astype(np.int64),
        starts=np.array([start for start, _, _ in flat]),
        ends=np.array([end for _, end, _ in flat]),
        speed=own["speed"],
        up=own["up"],
        down=own["down"],
        latency=own["latency"],
        groups=_numbered(path, own["group"]),
        fingerprint=fingerprint,
    )


def _merged(spans: list[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Intervals in rising order; those that touch are merged: the client does not leave in between."""
    merged: list[tuple[float, float, int]] = []
    for start, end, line in spans:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end, merged[-1][2])
        else:
            merged.append((start, end, line))
    return merged


def _numbered(path: str, groups: np.ndarray) -> np.ndarray:
    """Groups as whole numbers; a client without one is in group 0. A number without clients is an empty group."""
    numbers: np.ndarray = np.nan_to_num(groups, nan=0.0).astype(np.int64)
    empty = np.setdiff1d(np.arange(numbers.max() + 1), numbers)
    if len(empty):
        raise DataError(
            f"world trace: {path} has no client in group {empty[0]}, but some in group {numbers.max()}; expected "
            "groups numbered from 0, each with clients"
        )
    return numbers


def _bad(path: str, line: int, got: str, expected: str) -> DataError:
    return DataError(f"world trace: {path}, line {line}: got {got}; expected {expected}")
