import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedavg import ArrayData, Examples, Plan, Task, train
from fedavg.engine.model import Model
from fedavg.server import Round
from fedavg.setup import population_of
from toys import LINE, line_data, toy_data, toy_plan


def weights_after(plan):
    *_, last = train(plan)
    return last.state.weights


@pytest.mark.parametrize("engine", ["graph", "plain"])
def test_a_round_by_hand(engine):
    """w = 2, eta = 0.1, B = ∞. Client 0: 2 - 0.1 * 2(2 - 1) = 1.8. Client 1: gradient (4 + 4 + 12) / 3, so 2 - 2/3.
    The average is (1 * 1.8 + 3 * 4/3) / 4 = 1.45."""
    plan = Plan(task=LINE, data=line_data(), C=1, E=1, B="inf", lr=0.1, rounds=1, engine=engine, workers=1)
    assert float(weights_after(plan)) == pytest.approx(1.45)


def test_the_weights_are_over_the_cohort_not_over_all_clients():
    """The erratum: with only client 0 in the round, its model is the new model whole."""
    for seed in range(20):
        plan = Plan(task=LINE, data=line_data(), C=0, B="inf", lr=0.1, rounds=1, seed=seed, workers=1)
        *_, last = train(plan)
        assert last.clients == 1
        assert float(last.state.weights) in (pytest.approx(1.8), pytest.approx(4 / 3))


def test_algorithm_1_as_the_paper_writes_it():
    """The whole run again in twenty lines of plain PyTorch, with the same draws."""
    from fedavg import seeds
    from fedavg.cohorts import sample_cohort

    plan = toy_plan(E="3,2:1", B=4, lr=0.2, lr_decay=0.9, rounds=3)
    data, w = plan.data, Model(plan.task, plan.seed).vector.clone()
    for t in (1, 2, 3):
        eta, E = 0.2 * 0.9 ** (t - 1), {1: 3, 2: 1, 3: 1}[t]
        cohort = sample_cohort(plan, population_of(data), t)
        m_t = sum(len(data.client(k)) for k in cohort)
        w_next = torch.zeros_like(w)
        for k in cohort:
            model = Model(plan.task, plan.seed)
            model.load(w)
            examples, rng = data.client(k), seeds.rng(plan.seed, t, k, "shuffle")
            for _ in range(E):
                order = rng.permutation(len(examples)) if len(examples) > 4 else np.arange(len(examples))
                for batch in np.split(order, range(4, len(order), 4)):
                    loss = F.cross_entropy(model.module(examples.x[batch]), examples.y[batch])
                    grads = torch.autograd.grad(loss, list(model.module.parameters()))
                    with torch.no_grad():
                        for p, g in zip(model.module.parameters(), grads, strict=True):
                            p -= eta * g
            w_next += len(examples) / m_t * model.vector
        w = w_next
    torch.testing.assert_close(weights_after(plan), w, rtol=1e-5, atol=1e-6)


def test_fedsgd_is_the_endpoint_of_fedavg():
    """§2: E=1, B=∞ averages models; the gradient form applies the average gradient. They are the same."""
    changes = {"E": 1, "B": "inf", "rounds": 6}
    averaged = weights_after(toy_plan(**changes))
    by_gradient = weights_after(toy_plan(**changes, algorithm="fedsgd"))
    torch.testing.assert_close(averaged, by_gradient, rtol=1e-5, atol=1e-6)


def test_one_shot_averaging_is_the_other_endpoint():
    changes = {"E": 8, "C": 1.0, "rounds": 1}
    assert torch.equal(weights_after(toy_plan(**changes)), weights_after(toy_plan(**changes, algorithm="oneshot")))


def test_sgd_walks_through_the_pooled_data():
    """One minibatch is one round: an epoch of 53 examples in batches of 10 is six rounds, the last of three."""
    plan = toy_plan(algorithm="sgd", C=0, E=1, B=10, rounds=12)
    events = [event for event in train(plan) if isinstance(event, Round)]
    assert [event.examples for event in events] == [10, 10, 10, 10, 10, 3] * 2
    assert all(event.clients == 1 for event in events)


def test_sgd_sees_every_example_once_an_epoch():
    """With a loss that only adds up inputs, one epoch's change is the sum over the data, whatever the order."""
    task = Task(
        "sum", lambda: nn.Linear(8, 1, bias=False), loss=lambda o, y: o.mean(), metrics={"out": lambda o, y: o[:, 0]}
    )
    plan = toy_plan(task=task, algorithm="sgd", C=0, E=1, B=1, lr=1.0, rounds=53)
    start, *_, last = train(plan)
    data = toy_data()
    expected = -sum(data.client(k).x.sum(0) for k in range(len(data)))
    torch.testing.assert_close(last.state.weights - start.state.weights, expected, rtol=1e-4, atol=1e-4)


def test_buffers_are_averaged_like_weights_and_counters_are_kept():
    """Two clients of equal size, one round: the new running mean is the mean of theirs; the counter stays at zero."""
    task = Task("bn", lambda: nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Linear(1, 2)))
    x, y = torch.tensor([[1.0], [3.0], [7.0], [9.0]]), torch.tensor([0, 1, 0, 1])
    data = ArrayData("bn", x, y, [np.array([0, 1]), np.array([2, 3])], Examples(x, y))
    from fedavg import run

    result = run(Plan(task=task, data=data, C=1, B="inf", lr=0.1, rounds=1, workers=1))
    norm = result.model[0]
    assert norm.running_mean.tolist() == [pytest.approx(0.1 * (2 + 8) / 2)]
    assert norm.running_var.tolist() == [pytest.approx(0.9 * 1 + 0.1 * 2)]
    assert norm.num_batches_tracked == 0
