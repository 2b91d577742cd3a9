"""Sums in memory that the processes of one node can read from each other, and that vanishes with its process.

A worker's sum may be of a single client, so it must not be in Ray's object store or in a file. It is in anonymous
memory (memfd), which other processes of the same user open through /proc. Nothing is left when a worker is killed.
"""

import os
from dataclasses import dataclass
from mmap import MAP_SHARED, PROT_READ, mmap
from pathlib import Path
from secrets import token_hex

import numpy as np
import torch
from torch import Tensor

from fedavg.errors import FleetError


@dataclass(frozen=True)
class RingPlace:
    """Where a ring is on its node. The name is unique, since a process number may be reused."""

    pid: int
    descriptor: int
    name: str


def supported() -> bool:
    return hasattr(os, "memfd_create")


def new_ring(size: int) -> tuple[Tensor, RingPlace]:
    """Zeros, int64, shape (size,), and where others find them."""
    name = f"fedavg-{token_hex(8)}"
    descriptor = os.memfd_create(name)
    bytes = max(size, 1) * 8
    os.ftruncate(descriptor, bytes)
    ring = torch.frombuffer(mmap(descriptor, bytes), dtype=torch.int64, count=size)
    return ring, RingPlace(os.getpid(), descriptor, name)


def add_rings(places: list[RingPlace], size: int) -> np.ndarray:
    """The sum of the rings of several processes of this node, int64, shape (size,)."""
    total = np.zeros(size, np.int64)
    for place in places:
        total += _opened(place, size)
    return total


class RingGone(FleetError):
    """The process of a ring is gone, or is not this user's."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} has no sum that can be read; expected a worker of the same user and node")
        self.pid = pid

    def __reduce__(self) -> tuple[type["RingGone"], tuple[int]]:
        return RingGone, (self.pid,)


def _opened(place: RingPlace, size: int) -> np.ndarray:
    path = f"/proc/{place.pid}/fd/{place.descriptor}"
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(f"/memfd:{place.name}"):
                raise RingGone(place.pid)
            return np.frombuffer(mmap(descriptor, max(size, 1) * 8, MAP_SHARED, PROT_READ), np.int64, size)
        finally:
            os.close(descriptor)
    except OSError:
        raise RingGone(place.pid) from None
