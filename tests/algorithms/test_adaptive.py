from math import sqrt

import pytest
import torch

import fedavg
from fedavg import train
from fedavg.algorithms.adaptive import Adaptive, Estimates
from fedavg.server import Round
from toys import COUNTS, LINE, SLOPES, line_data, line_plan, toy_plan


def rounds_of(plan):
    return [event for event in train(plan) if isinstance(event, Round)]


def test_with_one_step_it_is_fedavg_to_rounding():
    """E = 1 and B = ∞ is one step; with most = 1 there is never more."""
    changes = {"C": 1, "E": 1, "B": "inf", "rounds": 5}
    plain, one = (rounds_of(toy_plan(**changes, algorithm=a))[-1] for a in ("fedavg", "adaptive:1000:most=1"))
    torch.testing.assert_close(plain.state.weights, one.state.weights, rtol=1e-5, atol=1e-6)


def losses(w):
    """F_k(w) of the line's clients: the mean squared errors of their examples."""
    return [(w - 1) ** 2, (w * w + w * w + (2 * w - 1) ** 2) / 3]


def test_rounds_by_hand():
    """Two rounds of one step, after which ρ, β and δ are known; then tau by the formula, written out anew."""
    eta, c, b, R, phi = 0.02, 1.0, 10.0, 1000.0, 0.025
    w, tau, ends, spent = 2.0, 1, None, 0.0
    for event in rounds_of(line_plan(algorithm="adaptive:1000", E=1, lr=eta, rounds=8)):
        gradients = [slope(w) for slope in SLOPES]
        rho = beta = 0.0
        if ends:
            for n, k in zip(COUNTS, (0, 1), strict=True):
                gap = abs(ends[k] - w)
                rho += n / 4 * abs(losses(ends[k])[k] - losses(w)[k]) / gap
                beta += n / 4 * abs(SLOPES[k](ends[k]) - gradients[k]) / gap
        mean = sum(n * g for n, g in zip(COUNTS, gradients, strict=True)) / 4
        delta = sqrt(sum(n * (g - mean) ** 2 for n, g in zip(COUNTS, gradients, strict=True)) / 4)
        ends = []
        for slope in SLOPES:
            end = w
            for _step in range(tau):
                end -= eta * slope(end)
            ends.append(end)
        w = sum(n * end for n, end in zip(COUNTS, ends, strict=True)) / 4
        spent += c * tau + b
        if beta:

            def G(t, rho=rho, beta=beta, delta=delta):
                h = delta / beta * ((eta * beta + 1) ** t - 1) - eta * delta * t
                T = R * t / (c * t + b)
                root = sqrt(1 + 4 * T * T * phi * rho * eta * h / t)
                return (1 + root) / (2 * T * eta * phi) + rho * h

            tau = min(range(1, 10 * tau + 1), key=G)
        assert float(event.state.weights) == pytest.approx(w, rel=1e-4)
        assert int(event.state.slots["tau"]) == tau
        assert float(event.state.slots["spent"]) == spent
    assert 1 < tau < 10


def test_the_bound_in_numbers():
    """h(2) = (0.5/2) (1.1² - 1) - 0.05 * 0.5 * 2 = 0.0025, and a = (2 + 10) / (2 * 0.05 * 0.025 * 1000 * 2) = 2.4."""
    bound = Adaptive(1000.0).bound(Estimates(rho=3.0, beta=2.0, delta=0.5), 2, 0.05)
    assert bound == pytest.approx(2.4 + sqrt(2.4**2 + 3 * 0.0025 / (0.05 * 0.025 * 2)) + 3 * 0.0025)


def test_the_budget_is_spent_and_not_exceeded():
    events = rounds_of(toy_plan(algorithm="adaptive:budget=200:step=1:round=7", C=1, E=1, rounds=500))
    assert len(events) < 500
    assert 200 - 8 < float(events[-1].state.slots["spent"]) <= 200
    assert all(float(event.state.slots["spent"]) <= 200 for event in events)


def test_dear_aggregation_asks_for_more_local_steps():
    estimates = Estimates(rho=1.0, beta=2.0, delta=0.5)
    taus = [
        min(range(1, 101), key=lambda t: Adaptive(1000.0, round=cost).bound(estimates, t, 0.05))
        for cost in (0.0, 5.0, 50.0)
    ]
    assert taus[0] < taus[1] < taus[2]


def test_clients_that_are_alike_need_not_meet():
    """δ = 0: nothing is lost by local steps, so as many as are allowed are best."""
    alike = Estimates(rho=1.0, beta=2.0, delta=0.0)
    assert min(range(1, 51), key=lambda t: Adaptive(1000.0).bound(alike, t, 0.05)) == 50


def test_a_run_that_spent_its_budget_is_finished(tmp_path):
    result = fedavg.run(line_plan(algorithm="adaptive:60", E=1, rounds=50), tmp_path / "run")
    assert (result.summary.status, result.summary.rounds < 50) == ("finished", True)
    again = fedavg.resume(tmp_path / "run", task=LINE, data=line_data())
    assert again.summary == result.summary
