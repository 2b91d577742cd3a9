"""How many rounds a day a device takes part in, by a clock that nobody can set.

A day is 24 hours of the machine's own uptime, sleep included. The wall clock is not used, so that setting it, by
hand or over the network, allows no further round. Time while the machine is off, and time after the last note of an
earlier boot, does not count, so that at worst a device does less than its owner allowed.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Final

from fedavg.fleets.http.device.files import DeviceFiles

DAY_S: Final = 86_400.0
FILE: Final = "rounds.json"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Uptime:
    """Seconds since the machine was started (or this process, where that is unknown); `boot` identifies the start."""

    boot: str
    seconds: float


@dataclass(frozen=True)
class Noted:
    """The device's own clock (seconds) as last noted, the uptime at that note, and when the last rounds began."""

    boot: str
    uptime_s: float
    clock_s: float
    began_s: list[float]


class Allowance:
    """Bounds the rounds of the last day by `most`; without it there is no bound."""

    def __init__(self, files: DeviceFiles, most: int | None, uptime: Callable[[], Uptime] | None = None) -> None:
        self._files, self._most, self._uptime = files, most, uptime or _system_uptime()

    def left(self) -> bool:
        """May the device begin another round now?"""
        if self._most is None:
            return True
        noted = self._now()
        return len([began for began in noted.began_s if noted.clock_s - began < DAY_S]) < self._most

    def spend(self) -> None:
        """A round begins; this is written to disk before anything is trained."""
        if self._most is None:
            return
        noted = self._now()
        began = [*noted.began_s, noted.clock_s][-self._most :]
        self._files.write_json(FILE, asdict(Noted(noted.boot, noted.uptime_s, noted.clock_s, began)))

    def _now(self) -> Noted:
        noted, uptime = self._files.read_as(FILE, Noted), self._uptime()
        if noted is None:
            return Noted(uptime.boot, uptime.seconds, 0.0, [])
        passed = max(0.0, uptime.seconds - noted.uptime_s) if uptime.boot == noted.boot else 0.0
        moved = Noted(uptime.boot, uptime.seconds, noted.clock_s + passed, noted.began_s)
        if uptime.boot != noted.boot or passed > DAY_S / 96:
            self._files.write_json(FILE, asdict(moved))
        return moved


def _system_uptime() -> Callable[[], Uptime]:
    if hasattr(time, "CLOCK_BOOTTIME") and _BOOT.exists():
        boot = _BOOT.read_text().strip()
        return lambda: Uptime(boot, time.clock_gettime(time.CLOCK_BOOTTIME))
    process = token_hex(16)
    return lambda: Uptime(process, time.monotonic())
