"""What every algorithm must do."""

from typing import Any

from fedavg.algorithms import Algorithm
from fedavg.testing.problem import check_learns, check_resumes, check_same_bits, check_text, require, small_plan


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
    check_learns(plan, what)
    short = small_plan(**{"algorithm": algorithm, **options, "rounds": min(plan.rounds, 5)})
    check_same_bits(short, what)
    check_resumes(short, what)
