"""One thread per process, unless a device's owner says otherwise. Threads are set only here.

Kernels round the same everywhere only on one thread; small operators lose more by waiting for each other than they
gain; and a forked process must not inherit a thread pool, so this comes before any parallel kernel.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


def one_thread() -> AbstractContextManager[None]:
    """Runs PyTorch on one thread inside; restores the setting on exit."""
    return threads(1)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """The same with `count` threads; on more than one, sums may round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
