import pytest
import torch

from fedavg import FedNova, train
from fedavg.optimizers import make_optimizer
from fedavg.types import Work
from toys import COUNTS, SLOPES, line_data, line_plan, toy_data, toy_plan


def weights_after(plan):
    *_, last = train(plan)
    return last.state.weights


def test_with_as_many_steps_for_all_it_is_fedavg_to_rounding():
    changes = {"data": toy_data(sizes=(8, 8, 0, 8, 8)), "B": 4}
    plain, normalised = (weights_after(toy_plan(**changes, algorithm=name)) for name in ("fedavg", "fednova"))
    torch.testing.assert_close(plain, normalised, rtol=1e-5, atol=1e-6)


def test_rounds_by_hand_with_unlike_steps():
    """B = 1: client 0 takes one step an epoch, client 1 three; each example's gradient is 2 x (w x - y)."""
    from fedavg import seeds

    shared, eta, data = 2.0, 0.1, line_data()
    for t in (1, 2, 3):
        directions, steps = [], []
        for k, n in enumerate(COUNTS):
            examples, w = data.client(k), shared
            order = seeds.rng(0, t, k, "shuffle").permutation(n) if n > 1 else [0]
            for i in order:
                x, y = float(examples.x[i]), float(examples.y[i])
                w -= eta * 2 * x * (w * x - y)
            directions.append((w - shared) / n)
            steps.append(n)
        tau_eff = sum(n * tau for n, tau in zip(COUNTS, steps, strict=True)) / 4
        shared += tau_eff * sum(n * d for n, d in zip(COUNTS, directions, strict=True)) / 4
    assert float(weights_after(line_plan(algorithm="fednova", E=1, B=1))) == pytest.approx(shared, rel=1e-5)


def test_it_finds_the_optimum_that_unlike_steps_lead_fedavg_away_from():
    """§3 of its paper: FedAvg's fixed point weighs clients by their steps as well, that of FedNova by n_k alone."""
    best = (2 * 1 + 3 * 4 / 3) / (2 * 1 + 3 * 4)  # Σ n_k ∇F_k(w) = 2(w - 1) + 3(4 w - 4/3) = 0
    assert sum(n * slope(best) for n, slope in zip(COUNTS, SLOPES, strict=True)) == pytest.approx(0)
    changes = {"E": 1, "B": 1, "lr": 0.01, "rounds": 200}  # small steps: at large ones both drift by their curvature
    gaps = {
        name: abs(float(weights_after(line_plan(algorithm=name, **changes))) - best) for name in ("fedavg", "fednova")
    }
    assert gaps["fednova"] < gaps["fedavg"] / 3


@pytest.mark.parametrize("optimizer", ["sgd", "sgd:momentum=0.9", "sgd:momentum=0.99:nesterov=true"])
def test_a_server_believes_the_steps_of_an_honest_client_and_no_more(optimizer):
    rule = make_optimizer(optimizer)
    for examples in (1, 9, 500):
        honest = torch.tensor(rule.effective_steps(2 * max(1, -(-examples // 4)))).item()  # in float32, as it travels
        low, high = FedNova().metric_bounds(Work(1, 2, 4, 0.1), examples, rule)["tau"]
        assert low <= honest <= high < 1.0001 * honest
