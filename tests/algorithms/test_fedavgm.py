import pytest
import torch

from fedavg import train
from toys import line_change, line_plan, toy_plan


def states_after(plan):
    return [event.state for event in train(plan)]


def test_without_momentum_it_is_fedavg_bit_for_bit():
    plain, neutral = (states_after(toy_plan(algorithm=name))[-1] for name in ("fedavg", "fedavgm:0:lr=1"))
    assert torch.equal(plain.weights, neutral.weights)


def test_rounds_by_hand():
    w, v = 2.0, 0.0
    for state in states_after(line_plan(algorithm="fedavgm:0.9:lr=0.5"))[1:]:
        v = 0.9 * v + line_change(w)
        w += 0.5 * v
        assert float(state.weights) == pytest.approx(w)
        assert float(state.slots["v"]) == pytest.approx(v)
