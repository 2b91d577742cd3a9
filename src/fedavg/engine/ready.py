"""Compiles what a run will need before it starts: the clients' sizes determine the lengths of the batches."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from fedavg.engine.lengths import batch_lengths
from fedavg.engine.trainer import Trainer
from fedavg.types import Examples

#: The most lengths of batches on which the step is checked before round 1: the shortest ones, and the longest.
PROVED: Final = 12


def make_ready(
    trainer: Trainer, examples: Examples, sizes: np.ndarray, batches: Iterable[float], drop_last: bool
) -> None:
    """Check the trainer's step on batches of the lengths that clients of these sizes will have, and compile it.

    `batches` are the values of B that the run will have.
    """
    lengths = sorted({length for batch in batches for length in batch_lengths(sizes, batch, drop_last) if length})
    trainer.ready_for(lengths if len(lengths) <= PROVED else [*lengths[: PROVED - 1], lengths[-1]], examples)
