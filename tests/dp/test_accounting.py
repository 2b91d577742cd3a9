"""Known answers, laws, and what each number is a statement about."""

import sys
from math import erfc, exp, inf, log, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedavg.dp.accounting import EveryRound, FixedSize, PoissonSampling, Spending, epsilon, noise_for, rounds_for
from fedavg.errors import PlanError

#: (q, z, rounds, delta) and epsilon by Rényi DP and by privacy loss distributions, add or remove one.
KNOWN = [
    (0.01, 4.0, 10_000, 1e-5, 1.0355, 0.9470),
    (256 / 60_000, 1.1, 14_062, 1e-5, 2.5966, 2.3817),
    (0.01, 1.0, 1000, 1e-5, 2.1014, 1.8282),
    (5000 / 763_430, 1.0, 5000, 1e-9, 4.1833, 3.8988),
]


@pytest.mark.parametrize(("q", "z", "rounds", "delta", "by_rdp", "by_pld"), KNOWN)
def test_known_answers(q, z, rounds, delta, by_rdp, by_pld):
    assert epsilon(PoissonSampling(q), z, rounds, delta, "rdp") == pytest.approx(by_rdp, abs=5e-5)
    assert epsilon(PoissonSampling(q), z, rounds, delta, "pld") == pytest.approx(by_pld, abs=5e-5)


def gaussian_epsilon(sensitivity, delta):
    """The exact epsilon of one Gaussian mechanism of standard deviation 1 (Balle and Wang 2018, Theorem 8)."""
    from scipy.optimize import brentq  # imported by those who use it: every worker collects this file

    def below(x):
        return erfc(-x / sqrt(2)) / 2

    def excess(e):
        a, b = sensitivity / 2, e / sensitivity
        return below(a - b) - exp(e) * below(-a - b) - delta

    return brentq(excess, 1e-6, 50)


def test_replacing_a_client_moves_the_sum_by_twice_the_norm():
    """A guard of the library too: should it start to halve the multiplier itself, this fails."""
    exact = gaussian_epsilon(2.0, 1e-5)
    assert epsilon(EveryRound(), 1.0, 1, 1e-5, "pld") == pytest.approx(exact, rel=1e-3)
    assert exact < epsilon(EveryRound(), 1.0, 1, 1e-5) < 1.1 * exact
    assert epsilon(FixedSize(10, 10), 1.0, 1, 1e-5) == pytest.approx(epsilon(EveryRound(), 1.0, 1, 1e-5), rel=1e-9)


def test_rdp_of_the_plain_gaussian_by_hand():
    """RDP at order a is a/(2 z²) a round; the classic conversion eps = 100 a/(2 z²) + log(1/delta)/(a-1) is above."""
    z, rounds, delta = 20.0, 100, 1e-6
    rho = rounds / (2 * z**2)
    classic = rho + 2 * sqrt(rho * log(1 / delta))
    got = epsilon(PoissonSampling(1.0), z, rounds, delta)
    assert 0.8 * classic < got <= classic


def test_a_fixed_cohort_costs_more_than_poisson_since_it_says_more():
    assert epsilon(FixedSize(1000, 10), 2.0, 100, 1e-5) > epsilon(PoissonSampling(0.01), 2.0, 100, 1e-5)


@settings(max_examples=8)
@given(st.floats(0.001, 0.5), st.floats(0.5, 10), st.integers(1, 1000))
def test_more_noise_and_fewer_rounds_cost_less(q, z, rounds):
    spending = Spending(PoissonSampling(q), z, 1e-5)
    assert 0 <= spending.epsilon(rounds) <= spending.epsilon(rounds + 1)
    assert epsilon(PoissonSampling(q), z * 1.5, rounds, 1e-5) <= spending.epsilon(rounds)


@pytest.mark.parametrize(
    ("sampling", "accountant"),
    [
        (PoissonSampling(0.01), "rdp"),
        (PoissonSampling(0.01), "pld"),
        (FixedSize(1000, 10), "rdp"),
        (EveryRound(), "rdp"),
    ],
)
def test_noise_for_is_the_inverse_and_on_the_safe_side(sampling, accountant):
    z = noise_for(2.0, sampling, 50, 1e-6, accountant)
    assert epsilon(sampling, z, 50, 1e-6, accountant) <= 2.0
    assert epsilon(sampling, z * 0.999 - 2e-4, 50, 1e-6, accountant) > 2.0


def test_rounds_for_is_the_inverse():
    rounds = rounds_for(2.0, PoissonSampling(0.01), 1.0, 1e-5)
    spending = Spending(PoissonSampling(0.01), 1.0, 1e-5)
    assert spending.epsilon(rounds) <= 2.0 < spending.epsilon(rounds + 1)
    assert rounds_for(0.1, EveryRound(), 1.0, 1e-5) == 0


def test_no_noise_is_no_privacy_and_no_round_costs_nothing():
    assert epsilon(PoissonSampling(0.1), 0.0, 1, 1e-5) == inf
    assert epsilon(PoissonSampling(0.1), 0.0, 1, 1e-5, "pld") == inf
    assert Spending(PoissonSampling(0.1), 1.0, 1e-5).epsilon(0) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: epsilon(PoissonSampling(0.1), -1, 1, 1e-5), "noise: got -1; expected a finite number of at least 0"),
        (lambda: epsilon(PoissonSampling(0.1), 1, 1, 0), "delta: got 0; expected a number above 0 and below 1"),
        (lambda: noise_for(0, PoissonSampling(0.1), 1, 1e-5), "epsilon: got 0; expected a finite number above 0"),
        (lambda: noise_for(1e-9, EveryRound(), 100, 1e-9), "more than 10000 times the norm would be needed"),
        (lambda: epsilon(FixedSize(9, 3), 1, 1, 1e-5, "pld"), "'pld' has no analysis of cohorts of a fixed size"),
    ],
)
def test_what_can_not_be_computed_is_refused(call, message):
    with pytest.raises(PlanError, match=message):
        call()


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(PlanError, match=r"not installed; use: pip install 'fedavg\[privacy\]'"):
        epsilon(PoissonSampling(0.1), 1.0, 1, 1e-5)
