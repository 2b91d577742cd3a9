"""One thread per process: the only place that says so.

Kernels round alike everywhere only on one thread; small operators lose more by waiting for each other than they gain;
and a forked process must not inherit a pool of threads, so this stands before any parallel kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread inside; as it was after."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
