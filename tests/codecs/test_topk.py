import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg.codecs import make_codec
from fedavg.codecs.topk import SAMPLE, largest_places


def test_by_hand():
    codec = make_codec("topk:0.4")
    frame = codec.encode(torch.tensor([0.5, -3.0, 1.0, 2.0, -1.5]), np.random.default_rng())
    assert frame[:8] == np.array([-3.0, 2.0], "<f4").tobytes()
    assert codec.decode(frame, 5).tolist() == [0, -3, 0, 2, 0]


@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=300), count=st.integers(1, 300))
def test_the_largest_and_of_equal_ones_the_first(values, count):
    count = min(count, len(values))
    expected = sorted(sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:count])
    assert largest_places(np.array(values, np.float32), count).tolist() == expected


def test_a_sample_that_misleads_costs_time_only():
    """All large numbers lie where the sample looks, or where it does not."""
    for offset in (0, 1):
        values = np.random.default_rng(0).standard_normal(100 * SAMPLE).astype(np.float32) / 100
        values[offset::SAMPLE] += 10
        assert largest_places(values, 100).tolist() == list(range(offset, len(values), SAMPLE))
        assert len(largest_places(values, 101)) == 101
