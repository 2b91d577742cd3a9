"""Steps around the sum. A new stage is one file and one line here."""

from collections.abc import Callable

from fedavg.errors import PlanError
from fedavg.stages.clip import Clip
from fedavg.stages.stage import Stage

STAGES: dict[str, Callable[[float], Stage]] = {
    "clip": Clip,
}


def parse_stage(text: str) -> Stage:
    """A stage from `name:number`, as a plan writes it."""
    name, _, number = text.partition(":")
    if name not in STAGES:
        raise PlanError(f"stages: got '{text}'; expected one of {', '.join(f'{s}:NUMBER' for s in sorted(STAGES))}")
    try:
        return STAGES[name](float(number))
    except ValueError:
        raise PlanError(f"stages: got '{text}'; expected '{name}:NUMBER', as in '{name}:1.0'") from None


__all__ = ["STAGES", "Stage", "parse_stage"]
