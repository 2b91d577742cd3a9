"""Steps around the sum. A new stage is one file and one line here."""

from fedavg.specs import parse_spec
from fedavg.stages.clip import Clip
from fedavg.stages.stage import Stage

STAGES: dict[str, type[Stage]] = {
    "clip": Clip,
}


def parse_stage(text: str) -> Stage:
    """A stage as a plan writes it: its name, and its settings after colons."""
    return parse_spec(text, STAGES, "stages")


__all__ = ["STAGES", "Stage", "parse_stage"]
