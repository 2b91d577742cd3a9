"""Where clients run. Only this folder knows."""

from fedavg.fleets.fleet import Abandoned, CohortResult, Fleet
from fedavg.fleets.local import LocalFleet

__all__ = ["Abandoned", "CohortResult", "Fleet", "LocalFleet"]
