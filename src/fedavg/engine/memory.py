"""Keeps a worker's memory allocator from giving pages back to the system between steps."""

import ctypes
import sys
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
KEEP_BYTES: Final = 1 << 30


def keep_freed_memory() -> None:
    """Activations are freed and wanted again every step; without this glibc unmaps large ones, and each step pays
    for page faults. Elsewhere than on glibc it does nothing."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEEP_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEEP_BYTES)
