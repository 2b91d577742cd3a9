"""Single updates from forked workers to the server: in shared memory, so that they need not be sent.

A row is lent to a job before the job is handed out, and is free again when nobody refers to its update any more.
"""

from mmap import mmap
from typing import final
from weakref import finalize

import numpy as np
import torch
from torch import Tensor


@final
class SingleRows:
    """Rows of `size` float32. Only the server lends them; only rows that were written take memory."""

    def __init__(self, count: int, size: int) -> None:
        self._memory = mmap(-1, max(4 * count * size, 1))
        self._size = size
        self._free = list(range(count))

    def lend(self) -> int | None:
        """A row that nobody uses; None if there is none."""
        return self._free.pop() if self._free else None

    def give_back(self, row: int) -> None:
        """Free a row that has not been read."""
        self._free.append(row)

    def write(self, row: int, vector: Tensor) -> None:
        """Called by the worker that the row was lent to."""
        torch.from_numpy(self._row(row)).copy_(vector)

    def read(self, row: int) -> memoryview:
        """The bytes of the update, not copied; its row is lent again only once nothing refers to them."""
        values = self._row(row)
        finalize(values, self._free.append, row).atexit = False
        return values.data.cast("B")

    def _row(self, row: int) -> np.ndarray:
        return np.frombuffer(self._memory, np.float32, self._size, 4 * row * self._size)
