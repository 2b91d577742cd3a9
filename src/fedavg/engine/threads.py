"""One thread per process, unless a device's owner says otherwise: the only place that says so.

Kernels round alike everywhere only on one thread; small operators lose more by waiting for each other than they gain;
and a forked process must not inherit a pool of threads, so this stands before any parallel kernel.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


def one_thread() -> AbstractContextManager[None]:
    """PyTorch on one thread inside; as it was after."""
    return threads(1)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """The same with so many; on more than one, sums may round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
