from fractions import Fraction
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.dp.discrete import as_fraction, discrete_gaussian


def pmf(sigma, reach):
    weights = np.array([exp(-(x**2) / (2 * sigma**2)) for x in range(-60, 61)])
    return (weights / weights.sum())[60 - reach : 60 + reach + 1]


@pytest.mark.parametrize(("sigma", "reach"), [(0.5, 2), (1.0, 4), (2.71875, 9)])
def test_the_exact_probabilities_by_chi_square(sigma, reach):
    """200,000 draws into one bin per integer and one for both tails; a wrong exponent fails by orders of magnitude."""
    from scipy.stats import chisquare  # imported by those who use it: every worker collects this file

    n = 200_000
    drawn = discrete_gaussian(sigma, n, np.random.default_rng(7))
    counts = np.bincount(np.clip(drawn + reach, -1, 2 * reach + 1) + 1, minlength=2 * reach + 3)
    expected = n * pmf(sigma, reach)
    observed = np.append(counts[1:-1], counts[0] + counts[-1])
    assert chisquare(observed, np.append(expected, n - expected.sum())).pvalue > 0.01


@pytest.mark.parametrize("sigma", [7.0, 63.9, 1000.0, 2.0**20])
def test_mean_and_variance(sigma):
    n = 40_000
    drawn = discrete_gaussian(sigma, n, np.random.default_rng(3)).astype(float)
    used = float(as_fraction(sigma))
    assert drawn.var() == pytest.approx(used**2, rel=5 * (2 / n) ** 0.5)
    assert abs(drawn.mean()) < 5 * used / n**0.5


@given(st.floats(0.01, 2.0**24))
def test_sigma_is_never_rounded_down(sigma):
    assert sigma <= as_fraction(sigma) <= max(sigma * (1 + 1 / 64), sigma + Fraction(1, 64))


def test_the_same_generator_gives_the_same_numbers():
    first, second = (discrete_gaussian(3.0, 1000, np.random.default_rng(1)) for _ in range(2))
    assert (first == second).all()
    assert first.dtype == np.int64


@pytest.mark.parametrize("sigma", [0, -1, 2.0**25, float("nan")])
def test_a_sigma_out_of_range_is_refused(sigma):
    with pytest.raises(ValueError, match="expected a number above 0"):
        discrete_gaussian(sigma, 1, np.random.default_rng(0))
