"""What every local optimiser must do."""

from typing import Any

import torch

from fedavg.optimizers import Optimizer
from fedavg.testing.problem import check_learns, check_repeats, check_text, last, require, small_plan


def check_optimizer(optimizer: Optimizer, **options: Any) -> None:
    """It learns, on both engines alike, with the same bits on any number of workers and after a stop.

    >>> from fedavg import SGD
    >>> check_optimizer(SGD(momentum=0.5))
    """
    what = f"optimizer {optimizer!r}"
    require(isinstance(optimizer, Optimizer), f"{what} is not a fedavg.Optimizer; derive its class from it")
    check_text(optimizer, Optimizer, what)
    plan = small_plan(optimizer=optimizer, **options)
    check_repeats(plan, what, check_learns(plan, what))
    few = {"optimizer": optimizer, **options, "rounds": 2}
    graph, plain = (last(small_plan(**few, engine=engine), what).state.weights for engine in ("graph", "plain"))
    require(
        torch.allclose(graph, plain, rtol=1e-3, atol=1e-4),
        f"{what}: the native epoch and plain PyTorch end up to {float((graph - plain).abs().max()):.2g} apart after 2 "
        "rounds; expected equal up to rounding. `step` must change w in place, and `folded` must say the same as it",
    )
