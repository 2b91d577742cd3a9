"""What every stage must do."""

from collections.abc import Sequence
from typing import Any

from fedavg.stages import Stage
from fedavg.testing.problem import check_repeats, check_text, last, require, small_plan


def check_stage(
    stage: Stage, before: Sequence[Stage | str] = (), after: Sequence[Stage | str] = (), **options: Any
) -> None:
    """A run with it ends, with the same bits on any number of workers and after a stop.

    `before` and `after` are stages that it needs around it, such as a clip before noise.

    >>> from fedavg.stages import Clip
    >>> check_stage(Clip(1.0, quantile=0.5))
    """
    what = f"stage {stage!r}"
    require(isinstance(stage, Stage), f"{what} is not a fedavg.Stage; derive its class from it")
    require(
        isinstance(stage.appends, int) and stage.appends >= 0,
        f"{what}: appends is {stage.appends!r}; expected how many numbers it adds to every update",
    )
    check_text(stage, Stage, what)
    plan = small_plan(stages=[*before, stage, *after], **options)
    end = last(plan, what)
    require(
        bool(end.state.weights.isfinite().all()), f"{what}: the weights after {end.round} rounds are not all finite"
    )
    check_repeats(plan, what, end)
