"""Memory that the server and its workers share, whichever way the workers start. Nothing of it outlives them.

Forked workers inherit anonymous memory. Other workers receive it by `multiprocessing`: a file that is unlinked before
anything is written to it (POSIX), or a section of memory that is freed with its last user (Windows).
"""

from collections.abc import Callable
from mmap import mmap
from multiprocessing import get_context
from typing import Any, final

import torch
from torch import Tensor


def shared_bytes(size: int, method: str) -> Any:
    """Zeros, as an object with the buffer protocol; unless `method` is fork, a new process can receive it."""
    return mmap(-1, max(size, 1)) if method == "fork" else get_context(method).RawArray("b", max(size, 1))


@final
class SharedVector:
    """A vector of numbers in shared memory; `tensor` has shape (size,)."""

    def __init__(self, size: int, dtype: torch.dtype, method: str) -> None:
        self._of(shared_bytes(size * dtype.itemsize, method), size, dtype)

    def _of(self, memory: Any, size: int, dtype: torch.dtype) -> None:
        self._memory, self._size, self._dtype = memory, size, dtype
        self.tensor: Tensor = torch.frombuffer(memory, dtype=dtype, count=size) if size else torch.empty(0, dtype=dtype)

    def __reduce__(self) -> tuple[Callable[..., "SharedVector"], tuple[Any, ...]]:
        return _received, (self._memory, self._size, self._dtype)


def _received(memory: Any, size: int, dtype: torch.dtype) -> SharedVector:
    vector = SharedVector.__new__(SharedVector)
    vector._of(memory, size, dtype)
    return vector
