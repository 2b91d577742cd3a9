"""Bits, and random numbers from a seed: the same for sender and receiver, whatever the machine or numpy version."""

from typing import Final

import numpy as np

SEED_BYTES: Final = 8


def draw_seed(rng: np.random.Generator) -> bytes:
    """Eight bytes that are sent in a frame in place of everything drawn from them."""
    return rng.bytes(SEED_BYTES)


def words(seed: bytes, count: int) -> np.ndarray:
    """`count` random uint32 from a seed. A bit generator's raw stream never changes; numpy's samplers may."""
    raw = np.random.SFC64(int.from_bytes(seed, "little")).random_raw(-(-count // 2))
    return raw.astype("<u8", copy=False).view("<u4")[:count]


def coins(seed: bytes, count: int) -> np.ndarray:
    """`count` random 0s and 1s, uint8, from a seed."""
    return np.unpackbits(words(seed, -(-count // 32)).view(np.uint8), count=count, bitorder="little")


def pack_numbers(numbers: np.ndarray, width: int) -> bytes:
    """Numbers from 0 to 2^width - 1, shape (n,), at `width` bits each; the last byte is filled with zeros."""
    shifts = np.arange(width, dtype=numbers.dtype)
    bits = (numbers[:, None] >> shifts) & numbers.dtype.type(1)
    return np.packbits(bits.astype(np.uint8, copy=False), axis=None, bitorder="little").tobytes()


def unpack_numbers(data: bytes, width: int, count: int) -> np.ndarray:
    """What `pack_numbers` packed, int64. `data` has at least `packed_bytes(width, count)` bytes."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count * width, bitorder="little")
    return bits.reshape(count, width).astype(np.int64) @ (1 << np.arange(width, dtype=np.int64))


def packed_bytes(width: int, count: int) -> int:
    return -(-width * count // 8)
