"""When a device may work: on power, on a network that costs nothing by the byte, and not in use (§1 of the paper)."""

import os
from pathlib import Path
from typing import Final, Literal

from fedavg.fleets.http.protocol.messages import Eligibility

YesNoAuto = Literal["auto", "yes", "no"]

_POWER: Final = Path("/sys/class/power_supply")
#: A machine is idle while fewer processes than this share of its cores want to run.
_BUSY: Final = 0.5


def look(charging: YesNoAuto, unmetered: YesNoAuto, idle: YesNoAuto) -> Eligibility:
    """What holds now; `auto` looks at the machine, and takes what it cannot know for granted."""
    return Eligibility(
        charging=_on_power() if charging == "auto" else charging == "yes",
        unmetered=unmetered != "no",
        idle=_idle() if idle == "auto" else idle == "yes",
    )


def _on_power() -> bool:
    """True unless a battery is being drained."""
    states = [path.read_text().strip() for path in _POWER.glob("*/status")] if _POWER.exists() else []
    return "Discharging" not in states


def _idle() -> bool:
    """The load is that of the whole machine, so it is held against all of its cores, not against those allowed here."""
    return not hasattr(os, "getloadavg") or os.getloadavg()[0] < _BUSY * (os.cpu_count() or 1)
