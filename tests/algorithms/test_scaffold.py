import numpy as np
import pytest
import torch

from fedavg import ArrayData, Examples, Task, train
from fedavg.testing.problem import check_learns, small_plan
from toys import COUNTS, SLOPES, line_plan, one_weight, toy_plan


def states_after(plan):
    return [event.state for event in train(plan)]


def test_its_first_round_is_fedavg_bit_for_bit():
    plain, first = (states_after(toy_plan(algorithm=name, rounds=1))[-1] for name in ("fedavg", "scaffold"))
    assert torch.equal(plain.weights, first.weights)


@pytest.mark.parametrize("engine", ["graph", "plain"])
def test_rounds_by_hand(engine):
    """Two steps a round at eta = 0.1; both clients in every round, so |S| / N = 1."""
    x, c, c_k = 2.0, 0.0, [0.0, 0.0]
    for state in states_after(line_plan(algorithm="scaffold:0.5", engine=engine, rounds=4))[1:]:
        moved, learned = [], []
        for k, slope in enumerate(SLOPES):
            y = x
            for _step in range(2):
                y -= 0.1 * (slope(y) - c_k[k] + c)
            new = c_k[k] - c + (x - y) / (2 * 0.1)
            moved.append(y - x)
            learned.append(new - c_k[k])
            c_k[k] = new
        x += 0.5 * sum(n * d for n, d in zip(COUNTS, moved, strict=True)) / 4
        c += sum(n * d for n, d in zip(COUNTS, learned, strict=True)) / 4
        assert float(state.weights) == pytest.approx(x, rel=1e-5)
        assert float(state.slots["c"]) == pytest.approx(c, rel=1e-4, abs=1e-5)


def test_a_part_of_the_clients_moves_c_by_its_part():
    """With C = 0 one client of two takes part: c moves by half of its Δc, which at first is its mean gradient."""
    start, end = states_after(line_plan(algorithm="scaffold", C=0, rounds=1))
    change = float(end.weights - start.weights)
    assert float(end.slots["c"]) == pytest.approx(-change / (2 * 0.1) / 2)


def test_it_goes_to_the_optimum_of_all_where_fedavg_stays_off():
    """Clients drift to their own optima, 1 and 1/3: FedAvg with many local steps ends between these by n_k alone."""
    best = 6 / 14  # 2(w - 1) + 3(4 w - 4/3) = 0
    changes = {"E": 10, "rounds": 60}
    ends = {
        name: float(states_after(line_plan(algorithm=name, **changes))[-1].weights) for name in ("fedavg", "scaffold")
    }
    assert ends["scaffold"] == pytest.approx(best, abs=1e-4)
    assert abs(ends["fedavg"] - best) > 0.02


def test_two_vectors_travel_each_way():
    one, two = (list(train(toy_plan(algorithm=name, rounds=1)))[-1] for name in ("fedavg", "scaffold"))
    assert (two.bytes_up, two.bytes_down) == (2 * one.bytes_up, 2 * one.bytes_down)


#: A loss that is linear in the one weight: its gradient is the mean of x wherever the weight is.
SLOPE = Task("slope", one_weight, loss=lambda o, y: o.mean(), metrics={"output": lambda o, y: o[:, 0]})


@pytest.mark.parametrize("optimizer", ["sgd", "sgd:momentum=0.9", "sgd:momentum=0.5:nesterov=true"])
def test_the_control_variate_of_a_constant_gradient_is_the_gradient_with_any_momentum(optimizer):
    x = torch.tensor([[1.0], [3.0]])
    data = ArrayData("slope", x, torch.zeros(2), [np.array([0, 1])], Examples(x, torch.zeros(2)))
    plan = line_plan(task=SLOPE, data=data, algorithm="scaffold", optimizer=optimizer, E=4, rounds=2, lr=0.01)
    first, second = list(train(plan))[1:]
    assert first.state.slots["c"].item() == pytest.approx(2, rel=1e-4)
    assert second.state.slots["c"].item() == pytest.approx(2, rel=1e-4)


def test_with_momentum_it_still_learns_where_clients_differ():
    """Five clients that lack one class each. A control variate that grew with the momentum led the weights away."""
    plan = small_plan(algorithm="scaffold", optimizer="sgd:momentum=0.9", C=1.0, E=5, lr=0.02, rounds=12)
    check_learns(plan, "scaffold with momentum")
