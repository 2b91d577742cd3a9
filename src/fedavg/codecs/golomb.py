"""Golomb coding of the places of a sparse vector (Sattler et al. 2020, Algorithms 3 and 4).

The gap before each place is 2^b q + r. Algorithm 3 writes q in unary and r in b bits, gap after gap; here all r come
first and then all q, which takes the same number of bits but needs no loop over gaps.
"""

from math import floor, log, log2

import numpy as np

from fedavg.codecs.bits import pack_numbers, packed_bytes, unpack_numbers
from fedavg.errors import DataError

#: log((√5 - 1) / 2)
_LOG_GOLDEN = log((5**0.5 - 1) / 2)


def remainder_bits(density: float) -> int:
    """b* = 1 + floor(log2(log(φ - 1) / log(1 - p))), the best for gaps between places of density p (Algorithm 3).

    >>> remainder_bits(0.01)
    6
    """
    return max(0, 1 + floor(log2(_LOG_GOLDEN / log(1 - density)))) if density < 1 else 0


def encode_places(places: np.ndarray, size: int) -> bytes:
    """Rising places, int64, of a vector of `size` numbers."""
    if not len(places):
        return b""
    b = remainder_bits(len(places) / size)
    gaps = np.diff(places, prepend=-1) - 1
    ends = np.cumsum((gaps >> b) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1, np.uint8)
    unary[ends] = 1  # q zeros, then a one
    return pack_numbers(gaps & ((1 << b) - 1), b) + np.packbits(unary, bitorder="little").tobytes()


def decode_places(data: bytes, count: int, size: int) -> np.ndarray:
    """The `count` places in `data`, which holds nothing else; anything malformed raises a DataError."""
    if not count:
        return _nothing(data)
    b = remainder_bits(count / size)
    split = packed_bytes(b, count)
    ends = np.flatnonzero(np.unpackbits(np.frombuffer(data[split:], np.uint8), bitorder="little"))
    if len(ends) != count or len(data) - split != int(ends[-1]) // 8 + 1:
        raise DataError(f"Golomb-coded places have {len(ends)} ends in {len(data)} bytes; expected {count}, the last "
                        "one in the last byte")  # fmt: skip
    gaps = ((np.diff(ends, prepend=-1) - 1) << b) + unpack_numbers(data[:split], b, count)
    places = np.cumsum(gaps + 1) - 1
    if places[-1] >= size:
        raise DataError(f"Golomb-coded places reach {places[-1]}; expected less than {size}")
    return places


def max_place_bytes(count: int, size: int) -> int:
    """The most bytes that `count` places of `size` take: all quotients together are at most size / 2^b."""
    if not count:
        return 0
    b = remainder_bits(count / size)
    return packed_bytes(b, count) + packed_bytes(1, count + (size >> b))


def _nothing(data: bytes) -> np.ndarray:
    if data:
        raise DataError(f"Golomb-coded places have {len(data)} bytes; expected 0 for no places")
    return np.empty(0, np.int64)
