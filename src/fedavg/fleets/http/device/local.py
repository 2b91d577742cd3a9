"""The current examples of one client in one run: those that it trains on, and those that it holds out."""

import numpy as np

from fedavg import trees
from fedavg.data.holdout import hold_out
from fedavg.engine.single import check_single
from fedavg.engine.trainer import Trainer
from fedavg.errors import DataError
from fedavg.fleets.http.device.sources import Source
from fedavg.setup import Setup
from fedavg.types import Examples


class Local:
    """`refresh` reads them again. The plan's seed and the number of examples decide which ones are held out."""

    def __init__(self, source: Source, setup: Setup, k: int) -> None:
        self._source, self._setup, self._k = source, setup, k
        self._take(source.read(setup.task.classes))
        self._form = _form(self.trained_on)

    @property
    def count(self) -> int:
        """The number of all examples."""
        return len(self._examples)

    def refresh(self, trainer: Trainer) -> None:
        """Read the examples again. If their form differs from before, that is an error in the device's data."""
        examples = self._source.read(self._setup.task.classes)
        if examples is self._examples:
            return
        self._take(examples)
        if self.count and _form(self.trained_on) != self._form:
            raise DataError(
                f"this device's examples are {_form(self.trained_on)} now; expected {self._form} as before: restart "
                "the device for another kind of examples"
            )
        self.check_sizes(trainer)

    def check_sizes(self, trainer: Trainer) -> None:
        plan, sizes = self._setup.plan, np.array([len(self.trained_on)])
        check_single(trainer, self.trained_on, sizes, plan.schedule("B").values, plan.drop_last)

    def _take(self, examples: Examples) -> None:
        plan = self._setup.plan
        self._examples = examples
        self.trained_on, self.held = hold_out(examples, plan.holdout, plan.seed, self._k)


def _form(examples: Examples) -> str:
    """What an example looks like: its shapes and types."""
    return "; ".join(f"{name} {_shown(tree)}" for name, tree in (("x", examples.x), ("y", examples.y)))


def _shown(tree: trees.Tree) -> str:
    return ", ".join(f"{tuple(leaf.shape[1:])} {leaf.dtype}" for leaf in trees.leaves(tree))
