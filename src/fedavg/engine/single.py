"""Batches of one example: an epoch may end with one, and batch normalisation cannot be trained on it."""

from collections.abc import Iterable

import numpy as np

from fedavg import trees
from fedavg.engine.trainer import Trainer
from fedavg.errors import TaskError
from fedavg.types import Examples

#: The most clients named in the message.
NAMED = 5


def check_single(
    trainer: Trainer, examples: Examples, sizes: np.ndarray, batches: Iterable[float], drop_last: bool
) -> None:
    """Refuse, before round 1, a module that fails on batches of one if a client of these sizes meets one.

    `batches` are the values of B that the run will have.
    """
    for batch in batches:
        short = np.flatnonzero(_ends_with_one(sizes, batch, drop_last))
        if not len(short):
            continue
        reason = trainer.trial(trees.take(examples, slice(0, 1)))
        if not reason:
            return
        named = ", ".join(f"{k} ({sizes[k]})" for k in short[:NAMED]) + (", ..." if len(short) > NAMED else "")
        alone = (sizes[short] == 1).any() or batch == 1
        remedy = "leave clients of one example out, or use another norm" if alone else "use drop_last, or another B"
        raise TaskError(
            f"'{trainer.task.name}' cannot be trained on a batch of one example: {reason}. With B={batch:g} such a "
            f"batch comes up at {len(short)} of {np.count_nonzero(sizes)} clients; by number (and examples): {named}. "
            f"Expected two examples or more in each: {remedy}."
        )


def _ends_with_one(sizes: np.ndarray, batch: float, drop_last: bool) -> np.ndarray:
    last = np.where(sizes < batch, sizes, sizes if drop_last or batch == 1 else sizes % max(batch, 2))
    return np.asarray((last == 1) | ((sizes > 0) & (batch == 1)))
