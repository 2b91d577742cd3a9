"""Steps around the sum. A new stage is one file and one line here."""

from fedavg.specs import parse_spec
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


def parse_stage(text: str) -> Stage:
    """A stage as a plan writes it: its name, and its settings after colons."""
    return parse_spec(text, STAGES, "stages")


__all__ = ["STAGES", "Stage", "parse_stage"]
