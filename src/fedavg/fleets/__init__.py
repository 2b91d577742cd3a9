"""Where clients run. Only this folder knows."""

from fedavg.fleets.fleet import CohortResult, Fleet
from fedavg.fleets.local import LocalFleet

__all__ = ["CohortResult", "Fleet", "LocalFleet"]
