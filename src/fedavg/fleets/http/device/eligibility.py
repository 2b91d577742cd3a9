"""When a device may work: on power, on an unmetered network, and idle (§1 of the paper)."""

import os
from pathlib import Path
from typing import Final, Literal

from fedavg.fleets.http.protocol.messages import Eligibility

YesNoAuto = Literal["auto", "yes", "no"]

_POWER: Final = Path("/sys/class/power_supply")
#: A machine is idle while its runnable processes are fewer than this share of its cores.
_BUSY: Final = 0.5


def look(charging: YesNoAuto, unmetered: YesNoAuto, idle: YesNoAuto) -> Eligibility:
    """The device's state now; `auto` looks at the machine, and assumes yes for what it cannot find out."""
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
    """The load is the whole machine's, so it is compared with all cores, not only those allowed to this process."""
    return not hasattr(os, "getloadavg") or os.getloadavg()[0] < _BUSY * (os.cpu_count() or 1)
