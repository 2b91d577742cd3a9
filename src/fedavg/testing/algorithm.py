"""What every algorithm must do."""

from dataclasses import replace
from typing import Any, Final

from fedavg.algorithms import Algorithm
from fedavg.testing.problem import check_learns, check_repeats, check_text, require, small_plan

#: Enough to see whether a run repeats itself.
FEW_ROUNDS: Final = 6


def check_algorithm(algorithm: Algorithm, **options: Any) -> None:
    """It learns, gives the same bits on any number of workers, and goes on after a stop as if there had been none.

    `options` are the plan's, for algorithms that need others than C=0.5, E=2, B=4, lr=0.1 and 6 rounds.

    >>> from fedavg.algorithms.fedprox import FedProx
    >>> check_algorithm(FedProx(0.1), rounds=12)
    """
    what = f"algorithm {algorithm!r}"
    require(isinstance(algorithm, Algorithm), f"{what} is not a fedavg.Algorithm; derive its class from it")
    require(bool(getattr(algorithm, "name", "")), f"{what} has no name; give its class one: name = 'myprox'")
    check_text(algorithm, Algorithm, what)
    plan = small_plan(algorithm=algorithm, **options)
    end = check_learns(plan, what)
    short = replace(plan, rounds=min(plan.rounds, FEW_ROUNDS))
    check_repeats(short, what, end if short.rounds == plan.rounds else None)
