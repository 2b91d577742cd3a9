"""Columns are sorted the same by the network and by NumPy."""

from itertools import product

import numpy as np
import pytest

from fedavg.robust.sorting import NETWORK_ROWS, network, sorted_columns


@pytest.mark.parametrize("rows", range(1, 13))
def test_a_network_sorts_all_zeros_and_ones_and_so_everything(rows):
    """The 0-1 principle: a network that sorts every list of zeros and ones sorts every list."""
    every = np.array(list(product([0.0, 1.0], repeat=rows)), np.float32).T.copy()
    assert np.array_equal(sorted_columns(every.copy()), np.sort(every, axis=0))


@pytest.mark.parametrize("rows", [13, 20, NETWORK_ROWS, NETWORK_ROWS + 1, 100])
def test_any_number_of_rows_is_sorted(rows):
    tile = np.random.default_rng(rows).standard_normal((rows, 50)).astype(np.float32)
    assert np.array_equal(sorted_columns(tile.copy()), np.sort(tile, axis=0))


def test_a_network_has_the_comparisons_of_odd_even_merge_sort():
    assert [len(network(rows)) for rows in (2, 4, 8, 16)] == [1, 5, 19, 63]
