import pytest
import torch
from torch import nn

from fedavg import Task, train
from toys import COUNTS, SLOPES, line_plan, toy_data, toy_plan


def weights_after(plan):
    *_, last = train(plan)
    return last.state.weights


@pytest.mark.parametrize("engine", ["graph", "plain"])
@pytest.mark.parametrize("B", [3, 4, "inf"])
def test_without_its_term_it_is_fedavg_bit_for_bit(engine, B):
    """Also with a short last batch: the corrected epoch takes its steps one by one, in the same order."""
    expected = weights_after(toy_plan(B=B, engine=engine))
    assert torch.equal(weights_after(toy_plan(B=B, engine=engine, algorithm="fedprox:0")), expected)


def test_without_its_term_it_is_fedavg_bit_for_bit_on_mnist():
    changes = {"task": "mnist-2nn", "data": "mnist", "C": 0.05, "B": 10, "E": 1, "rounds": 2}
    assert torch.equal(weights_after(toy_plan(**changes)), weights_after(toy_plan(**changes, algorithm="fedprox:0")))


@pytest.mark.parametrize("engine", ["graph", "plain"])
def test_rounds_by_hand(engine):
    """Both the gradient and the pull are taken at the weights before the step."""
    shared, mu, eta = 2.0, 3.0, 0.1
    for _round in range(3):
        ends = []
        for slope in SLOPES:
            w = shared
            for _step in range(2):
                w -= eta * (slope(w) + mu * (w - shared))
            ends.append(w)
        shared = sum(n * w for n, w in zip(COUNTS, ends, strict=True)) / 4
    assert float(weights_after(line_plan(algorithm="fedprox:3", engine=engine))) == pytest.approx(shared)


def test_a_strong_pull_holds_clients_at_the_shared_model():
    moved = {
        mu: float((weights_after(toy_plan(algorithm=f"fedprox:{mu}", rounds=1, E=5)) - start()).norm())
        for mu in (0, 1, 9)
    }
    assert moved[9] < moved[1] < moved[0]


def start():
    first, *_ = train(toy_plan(rounds=1))
    return first.state.weights


def test_buffers_are_not_pulled():
    """Running statistics are no parameters: with lr * mu = 1 a pull would put them back to where they were."""
    task = Task("bn", lambda: nn.Sequential(nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3)))
    data = toy_data(sizes=(8, 12, 0, 8))
    changes = {"task": task, "data": data, "C": 1, "B": "inf", "E": 1, "rounds": 1}
    free, pulled = (weights_after(toy_plan(**changes, algorithm=name)) for name in ("fedavg", "fedprox:10"))
    assert torch.equal(free[-16:], pulled[-16:])
