"""Every random draw of a run comes from here.

A draw is named by (seed, round, client, purpose), so its value depends neither on the order in which clients run
nor on which process runs them. Philox is counter-based: the name is hashed into its key.
"""

import secrets
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.random.bit_generator import ISeedSequence

#: For draws that belong to no client (sampling a cohort) or to no round (partitioning, initial weights).
NONE: Final = -1


def _digest(seed: int, round: int, client: int, purpose: str, size: int) -> bytes:
    return blake2b(f"{seed}/{round}/{client}/{purpose}".encode(), digest_size=size).digest()


class _PhiloxKey(ISeedSequence):
    """A key of Philox as it is: given as `key`, NumPy would ask the system for entropy too, and not use it."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.frombuffer(self._key, np.uint64)


def rng(seed: int, round: int, client: int, purpose: str) -> np.random.Generator:
    """An independent generator for one purpose of one client in one round."""
    key: Any = _PhiloxKey(_digest(seed, round, client, purpose, 16))  # NumPy's stubs know only its own sequences
    return np.random.Generator(np.random.Philox(key))


def fresh_rng() -> np.random.Generator:
    """A generator that nobody can repeat: its key comes from OS entropy and is kept nowhere."""
    return np.random.Generator(np.random.Philox(key=secrets.randbits(128)))


def torch_seed(seed: int, round: int, client: int, purpose: str) -> int:
    """A seed for code that can only draw from PyTorch's generator, such as dropout and parameter initialisers."""
    return int.from_bytes(_digest(seed, round, client, purpose, 8), "little") >> 1
