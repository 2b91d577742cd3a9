"""Means of ranks: by hand, and the same bits with and without the kernel in C."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedavg import native
from fedavg.robust import Rows
from fedavg.robust.ranks import SOURCE, rank_means
from fedavg.robust.sorting import NETWORK_ROWS


def updates(rows, size, seed=0):
    return Rows.of(list(np.random.default_rng(seed).standard_normal((rows, size)).astype(np.float32)))


def test_the_least_value_has_rank_0():
    rows = Rows.of([np.array(value, np.float32) for value in ([1, 40], [9, 10], [3, 20], [5, 30])])
    assert rank_means(rows, range(1, 3)).tolist() == [4.0, 25.0]
    assert rank_means(rows, range(1)).tolist() == [1.0, 10.0]


def test_combinations_of_updates_are_ranked_as_such():
    rows = Rows.of([np.array([1.0], np.float32), np.array([10.0], np.float32)])
    mixed = rows.mixed(np.array([[2.0, 0.0], [0.0, -1.0], [0.5, 0.5]]))  # 2, -10, 5.5
    assert [rank_means(mixed, range(rank, rank + 1)).item() for rank in range(3)] == [-10.0, 2.0, 5.5]


@pytest.mark.skipif(native.library(SOURCE) is None, reason="no kernels in C here: no compiler, or FEDAVG_NATIVE=0")
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, NETWORK_ROWS + 3),
    size=st.integers(1, 300),
    mixes=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_the_kernel_gives_the_bits_of_numpy(rows, size, mixes, seed, data):
    first = data.draw(st.integers(0, rows - 1))
    ranks = range(first, data.draw(st.integers(first + 1, rows)))
    given = updates(rows, size, seed)
    if mixes:
        rng = np.random.default_rng(seed)
        given = updates(5, size, seed).mixed(rng.standard_normal((rows, 5)) * rng.integers(0, 2, (rows, 5)))
    by_kernel = rank_means(given, ranks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda source: None)
        by_numpy = rank_means(given, ranks)
    assert np.array_equal(by_kernel, by_numpy)
