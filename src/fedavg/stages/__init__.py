"""Steps around the sum. A new stage is one file and one line here."""

from fedavg.specs import make
from fedavg.stages.clip import Clip
from fedavg.stages.localdp import LocalDP
from fedavg.stages.noise import Noise
from fedavg.stages.stage import Stage
from fedavg.stages.weigh import Weigh

STAGES: dict[str, type[Stage]] = {
    "clip": Clip,
    "weigh": Weigh,
    "noise": Noise,
    "localdp": LocalDP,
}


def make_stage(value: str | Stage) -> Stage:
    """A stage as a plan has it: the object, or its name with settings after colons."""
    return make(value, Stage)


__all__ = ["STAGES", "Clip", "LocalDP", "Noise", "Stage", "Weigh", "make_stage"]
