from math import copysign, sqrt

import pytest
import torch

from fedavg import train
from toys import line_change, line_plan, toy_plan


def states_after(plan):
    return [event.state for event in train(plan)]


@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_with_a_second_moment_that_stays_it_is_fedavg_bit_for_bit(name):
    """v stays at tau², so lr / (√v + tau) is 1; 2 and 1 are powers of two, so nothing is rounded."""
    plain, neutral = (states_after(toy_plan(algorithm=a))[-1] for a in ("fedavg", f"{name}:2:beta1=0:beta2=1:tau=1"))
    assert torch.equal(plain.weights, neutral.weights)


def test_with_a_huge_tau_fedadagrad_is_fedavg_to_rounding():
    plain, neutral = (states_after(toy_plan(algorithm=a))[-1] for a in ("fedavg", "fedadagrad:lr=2e4:tau=1e4"))
    torch.testing.assert_close(plain.weights, neutral.weights, rtol=1e-5, atol=1e-6)


SECOND = {
    "fedadagrad": lambda v, d: v + d * d,
    "fedadam": lambda v, d: 0.99 * v + 0.01 * d * d,
    "fedyogi": lambda v, d: v - 0.01 * d * d * copysign(1, v - d * d),
}


@pytest.mark.parametrize("name", SECOND)
def test_rounds_by_hand(name):
    w, m, v, tau = 2.0, 0.0, 0.01, 0.1
    for state in states_after(line_plan(algorithm=f"{name}:lr=0.3:beta1=0.9:tau=0.1"))[1:]:
        change = line_change(w)
        m = 0.9 * m + 0.1 * change
        v = SECOND[name](v, change)
        w += 0.3 * m / (sqrt(v) + tau)
        assert float(state.weights) == pytest.approx(w)
        assert float(state.slots["m"]) == pytest.approx(m)
        assert float(state.slots["v"]) == pytest.approx(v, rel=1e-5)


def test_a_step_of_fedadam_is_bounded_by_its_rate_not_by_the_change():
    """|w_1 - w_0| <= lr (1 - beta1) / √(1 - beta2) = lr, however large the clients' rate makes their change."""
    start, end = train(toy_plan(algorithm="fedadam:0.01", lr=0.5, E=5, rounds=1))
    assert float((end.state.weights - start.state.weights).abs().max()) <= 0.01 + 1e-7
