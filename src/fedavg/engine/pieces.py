"""What an engine processes in one call: prepared examples in batches of one length, and a function that steps through
them."""

from collections.abc import Callable, Iterator
from ctypes import c_float
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedavg import trees
from fedavg.optimizers.optimizer import Steps
from fedavg.types import Examples


@dataclass(frozen=True)
class Piece:
    """Prepared examples: all in batches of the same length."""

    examples: Examples
    batch: int
    #: Raw examples per row: a task's `collate` may combine several into one.
    share: float = 1.0

    @property
    def leaves(self) -> list[Tensor]:
        return [*trees.leaves(self.examples.x), *trees.leaves(self.examples.y)]

    def of_raw(self, loss: float) -> float:
        """Converts a sum over rows to one over the raw examples that they stand for."""
        return loss if self.share == 1 else single(loss * single(self.share))


def single(value: float) -> float:
    """Rounded to float32, the type of losses."""
    return c_float(value).value


#: Takes one step for each batch of a piece, in order. Returns the sum of the losses, a float32.
Epoch = Callable[[Piece, Steps], float]


class Epochs(Protocol):
    """An engine: it has a function for each form of piece and each kind of step."""

    def epoch_for(self, piece: Piece, steps: Steps) -> Epoch: ...


def cut(examples: Examples, size: int) -> Iterator[Piece]:
    """Prepared examples in order: all full batches, then the short last one if any is left."""
    count = len(examples)
    short = count % size
    full = count - short
    if not short:
        yield Piece(examples, size)
        return
    if full:
        yield Piece(trees.take(examples, slice(0, full)), size)
    yield Piece(trees.take(examples, slice(full, None)), short)
