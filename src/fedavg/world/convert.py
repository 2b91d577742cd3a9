"""Published traces as rows of our format (`trace.py`). Nothing in a file is ever run: the reader of pickles knows only
plain values, and refuses everything else.

FedScale: `client_behave_trace` {client: {duration, inactive, finish_time, active, model}} (seconds) and
`client_device_capacity` {client: {computation: ms for one example's inference, communication: kbit/s}}, as pickle or
JSON. As in FedScale, a training step counts as three inferences.

FLASH: user behaviour {guid: {messages: "YYYY-mm-dd HH:MM:SS\tstate\n..."}} or its digest `cached_timers.json`
{guid: {isSuccess, trace_start, trace_end, ready_time: [[from, to], ...]}}, as JSON. As in FLASH, a client is there
while it is locked, charging and on Wi-Fi. A client's times count from the midnight before its own trace begins.
"""

import io
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from math import floor, isfinite
from pathlib import Path
from typing import Any, Final, NoReturn

from fedavg.errors import DataError
from fedavg.world.presence import DAY_S

TraceRow = dict[str, Any]

#: FedScale counts kbit as 1024 bits.
_KBIT_BYTES: Final = 1024 / 8
#: Forward and backward pass in units of an inference.
_PASSES: Final = 3.0


def fedscale(behaviour: Path, capacity: Path | None = None) -> Iterator[TraceRow]:
    """Rows of FedScale's traces: when clients are active, and what their devices can do, if that is given.

    Devices are dealt to the clients of the behaviour trace in the order of their numbers, and from the start again.
    """
    traces = _entries(behaviour, _plain(behaviour))
    devices = [] if capacity is None else [_device(capacity, *entry) for entry in _entries(capacity, _plain(capacity))]
    for number, (name, trace) in enumerate(traces):
        spans = _fedscale_spans(behaviour, name, trace)
        yield from _client_rows(number, spans, devices[number % len(devices)] if devices else {})


def flash(behaviour: Path) -> Iterator[TraceRow]:
    """Rows of FLASH's user behaviour; clients whose trace is broken count as clients that never come."""
    for number, (name, entry) in enumerate(_entries(behaviour, _json(behaviour))):
        known = _ready_spans(behaviour, name, entry) if "ready_time" in entry else _told_spans(entry)
        yield from _client_rows(number, _from_midnight(known), {})


def _ready_spans(path: Path, name: str, entry: Mapping[str, Any]) -> list[tuple[float, float]]:
    try:
        return [(float(start), float(end)) for start, end in entry["ready_time"]] if entry["isSuccess"] else []
    except (KeyError, TypeError, ValueError):
        raise _strange(path, name, "'isSuccess', and pairs of seconds as 'ready_time'") from None


def _client_rows(client: int, spans: Iterable[tuple[float, float]], own: Mapping[str, float]) -> Iterator[TraceRow]:
    merged = _merged(sorted((start, end) for start, end in spans if end > start))
    first: TraceRow = {"client": client, **own}
    if not merged:
        yield first
    for place, (start, end) in enumerate(merged):
        yield {**(first if place == 0 else {"client": client}), "from": start, "to": end}


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Intervals that touch or overlap as one."""
    merged: list[tuple[float, float]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _fedscale_spans(path: Path, name: str, trace: Mapping[str, Any]) -> list[tuple[float, float]]:
    try:
        active, inactive, finish = list(trace["active"]), list(trace["inactive"]), float(trace["finish_time"])
        times = [float(value) for value in (*active, *inactive)]
    except (KeyError, TypeError, ValueError):
        raise _strange(path, name, "lists 'active' and 'inactive' of seconds, and 'finish_time'") from None
    if not all(isfinite(time) and time >= 0 for time in (*times, finish)):
        raise _strange(path, name, "finite times from 0")
    ends = sorted(map(float, inactive))
    # A client is active until the next time that it becomes inactive, or to the end of its trace.
    return [(start, next((end for end in ends if end > start), finish)) for start in map(float, active)]


def _device(path: Path, name: str, entry: Mapping[str, Any]) -> dict[str, float]:
    try:
        milliseconds, kilobits = float(entry["computation"]), float(entry["communication"])
    except (KeyError, TypeError, ValueError):
        raise _strange(path, name, "numbers 'computation' and 'communication'") from None
    if not (0 < milliseconds < float("inf") and 0 < kilobits < float("inf")):
        raise _strange(path, name, "'computation' and 'communication' above 0")
    line = kilobits * _KBIT_BYTES / 1e6
    return {"speed": 1000 / (_PASSES * milliseconds), "up": line, "down": line}


#: What a message says about a device's state.
_ON: Final = {
    "battery_charged_on": ("charged", True),
    "battery_charged_off": ("charged", False),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("2g", "3g", "4g", "5g", "unknown"), ("wifi", False)),
}


def _told_spans(entry: Mapping[str, Any]) -> list[tuple[float, float]]:
    """While locked, charging and on Wi-Fi; a state that holds at the last message has no known end, and is left out."""
    state, since, spans = {"charged": False, "wifi": False, "locked": False}, None, []
    for line in str(entry.get("messages", "")).replace("\x00", "").splitlines():
        time, _, word = line.strip().partition("\t")
        if not word:
            continue
        try:
            at = datetime.strptime(time.strip(), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return []
        name, value = _ON.get(word.strip().lower(), ("", False))
        if name:
            state[name] = value
        if all(state.values()) and since is None:
            since = at
        elif since is not None and not all(state.values()):
            spans.append((since, at))
            since = None
    return spans


def _from_midnight(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if not spans:
        return []
    midnight = floor(min(span[0] for span in spans) / DAY_S) * DAY_S
    return [(span[0] - midnight, span[1] - midnight) for span in spans]


def _entries(path: Path, content: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """The clients of a file, in the order of their numbers, or of their names."""
    if not isinstance(content, dict) or not content or not all(isinstance(entry, dict) for entry in content.values()):
        raise DataError(f"{path} has {type(content).__name__}; expected a dictionary with an entry for each client")
    numbers = all(str(name).isdecimal() for name in content)
    order: Callable[[Any], Any] = (lambda name: int(name)) if numbers else str
    return [(str(name), content[name]) for name in sorted(content, key=order)]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; expected a trace") from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None


def _plain(path: Path) -> Any:
    """JSON, or a pickle of plain values."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; expected a trace") from None
    if content[:1] in (b"{", b"["):
        return _json(path)
    try:
        return _PlainUnpickler(io.BytesIO(content)).load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path} is neither JSON nor a pickle of plain values: {error}") from None


class _PlainUnpickler(pickle.Unpickler):
    """Dictionaries, lists, numbers and text need no name lookup, so every name is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise DataError(f"the pickle asks for {module}.{name}; expected plain values only, and nothing was run")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise DataError("the pickle refers to something outside; expected plain values only")


def _strange(path: Path, name: str, expected: str) -> DataError:
    return DataError(f"{path}, client {name}: expected {expected}")
