import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedavg.codecs.bits import coins, pack_numbers, packed_bytes, unpack_numbers, words

PINNED = [3364948354, 2389685960, 3435522166, 3460572340, 2739729708]


def test_a_seed_stands_for_the_same_numbers_everywhere():
    """Both ends of a wire rely on it: if this changes, old and new devices no longer understand each other."""
    assert words(b"12345678", 5).tolist() == PINNED
    assert coins(b"12345678", 32).tolist() == [(PINNED[0] >> bit) & 1 for bit in range(32)]


@given(width=st.integers(0, 20), data=st.data())
def test_numbers_come_back(width, data):
    numbers = data.draw(st.lists(st.integers(0, 2**width - 1), max_size=30))
    packed = pack_numbers(np.array(numbers, np.int64), width)
    assert len(packed) == packed_bytes(width, len(numbers))
    assert unpack_numbers(packed, width, len(numbers)).tolist() == numbers


def test_packing_by_hand():
    assert pack_numbers(np.array([1, 2, 3]), 3) == bytes([0b11_010_001, 0b0])
