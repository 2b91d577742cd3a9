"""Where clients run; only this folder knows. A fleet that needs no server has a name here."""

from fedavg.errors import FleetError
from fedavg.fleets.fleet import Abandoned, CohortResult, Fleet
from fedavg.fleets.local import LocalFleet
from fedavg.fleets.ray.fleet import RayFleet
from fedavg.fleets.simulated import SimulatedFleet
from fedavg.fleets.timed import in_world
from fedavg.specs import make

FLEETS: dict[str, type[Fleet]] = {"local": LocalFleet, "ray": RayFleet}


def make_fleet(value: str | Fleet) -> Fleet:
    """The fleet that a value stands for: the object, a name with settings after colons, or an import name."""
    return make(value, Fleet)  # type: ignore[type-abstract]


def make_simulated(value: str | Fleet) -> SimulatedFleet:
    """The same for tasks that need all clients at once, such as fine-tuning."""
    fleet = make_fleet(value)
    if not isinstance(fleet, SimulatedFleet):
        raise FleetError(
            f"fleet: got {type(fleet).__name__}, whose clients are not simulated; expected 'local' or 'ray'"
        )
    return fleet


__all__ = [
    "FLEETS",
    "Abandoned",
    "CohortResult",
    "Fleet",
    "LocalFleet",
    "RayFleet",
    "in_world",
    "make_fleet",
    "make_simulated",
]
