from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.codecs.golomb import decode_places, encode_places, max_place_bytes, remainder_bits
from fedavg.errors import DataError


@given(size=st.integers(1, 3000), data=st.data())
def test_places_come_back(size, data):
    places = sorted(data.draw(st.sets(st.integers(0, size - 1), max_size=60)))
    coded = encode_places(np.array(places, np.int64), size)
    assert len(coded) <= max_place_bytes(len(places), size)
    assert decode_places(coded, len(places), size).tolist() == places


def test_by_hand():
    # 4 places of 64: p = 1/16, b* = 1 + floor(log2(0.4812 / 0.0645)) = 3.
    # Gaps 2, 8, 0, 17: r = 2, 0, 0, 1 in three bits each; q = 0, 1, 0, 2 as "1", "01", "1", "001".
    places = np.array([2, 11, 12, 30])
    assert remainder_bits(4 / 64) == 3
    assert encode_places(places, 64) == bytes([0b00_000_010, 0b0010, 0b1001101])


@pytest.mark.parametrize("p", [0.5, 0.2, 0.04, 0.01, 0.0025, 0.001])
def test_the_parameter_is_the_best(p):
    """Bits for a place at density p: b + 1 / (1 - (1 - p)^(2^b))."""
    cost = {b: b + 1 / (1 - (1 - p) ** 2**b) for b in range(20)}
    assert cost[remainder_bits(p)] == min(cost.values())


@pytest.mark.parametrize("p", [0.1, 0.01, 0.0025])
def test_it_is_near_the_entropy(p):
    rng = np.random.default_rng(0)
    places = np.flatnonzero(rng.random(1_000_000) < p)
    entropy = (-p * log2(p) - (1 - p) * log2(1 - p)) * 1e6 / 8
    assert len(encode_places(places, 1_000_000)) < 1.05 * entropy


def test_malformed_places_are_refused():
    coded = encode_places(np.array([2, 11, 12, 30]), 64)
    for bad in (coded[:-1], coded + b"\1", coded + b"\0", b""):
        with pytest.raises(DataError, match="ends in .* expected 4"):
            decode_places(bad, 4, 64)
    with pytest.raises(DataError, match="reach 30; expected less than 30"):
        decode_places(encode_places(np.array([2, 11, 12, 30]), 31), 4, 30)  # 4 of 31 and 4 of 30 have the same b
