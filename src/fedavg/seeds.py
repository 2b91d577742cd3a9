"""Every random draw of a run comes from here.

A draw is named by (seed, round, client, purpose), so its value depends neither on the order in which clients run
nor on which process runs them. Philox is counter-based: the name is hashed into its key.
"""

import secrets
from hashlib import blake2b
from typing import Final

import numpy as np

#: For draws that belong to no client (sampling a cohort) or to no round (partitioning, initial weights).
NONE: Final = -1


def _digest(seed: int, round: int, client: int, purpose: str, size: int) -> bytes:
    return blake2b(f"{seed}/{round}/{client}/{purpose}".encode(), digest_size=size).digest()


def rng(seed: int, round: int, client: int, purpose: str) -> np.random.Generator:
    """An independent generator for one purpose of one client in one round."""
    key = np.frombuffer(_digest(seed, round, client, purpose, 16), np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def fresh_rng() -> np.random.Generator:
    """A generator that nobody can repeat: its key is the operating system's entropy, and is kept nowhere."""
    return np.random.Generator(np.random.Philox(key=secrets.randbits(128)))


def torch_seed(seed: int, round: int, client: int, purpose: str) -> int:
    """A seed for code that can only draw from PyTorch's generator, such as dropout and parameter initialisers."""
    return int.from_bytes(_digest(seed, round, client, purpose, 8), "little") >> 1
