"""Checks for parts of your own: `check_algorithm(MyProx(0.1))` in a test says what is wrong, and how to fix it.

They are the checks that this package makes of its own parts. Each trains small problems in a few seconds, and raises a
`CheckFailed`, which is an `AssertionError`.
"""

from fedavg.testing.algorithm import check_algorithm
from fedavg.testing.attack import check_attack
from fedavg.testing.codec import check_codec
from fedavg.testing.data import check_data
from fedavg.testing.metric import check_metric
from fedavg.testing.optimizer import check_optimizer
from fedavg.testing.problem import CheckFailed
from fedavg.testing.reducer import check_reducer
from fedavg.testing.sampler import check_sampler
from fedavg.testing.stage import check_stage
from fedavg.testing.task import check_task
from fedavg.testing.world import check_world

__all__ = [
    "CheckFailed", "check_algorithm", "check_attack", "check_codec", "check_data", "check_metric", "check_optimizer",
    "check_reducer", "check_sampler", "check_stage", "check_task", "check_world",
]  # fmt: skip
