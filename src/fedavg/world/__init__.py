"""Who is there when, on what devices, and when a round has enough: a simulated clock (docs/world.md)."""

from fedavg.specs import make
from fedavg.world.closing import CLOSINGS, Closing, Deadline, Everyone, Quorum
from fedavg.world.devices import DEVICES, Alike, Devices, LogNormal, Rates
from fedavg.world.world import WORLDS, Always, Diurnal, Markov, Traced, World

__all__ = [
    "CLOSINGS", "DEVICES", "WORLDS", "Alike", "Always", "Closing", "Deadline", "Devices", "Diurnal", "Everyone",
    "LogNormal", "Markov", "Quorum", "Rates", "Traced", "World", "make_closing", "make_world",
]  # fmt: skip


def make_world(value: str | World) -> World:
    """A world as a plan has it: the object, or its name with settings after colons."""
    return make(value, World)  # type: ignore[type-abstract]


def make_closing(value: str | Closing) -> Closing:
    """When rounds end, as a plan has it: the object, or its name with settings after colons."""
    return make(value, Closing)
