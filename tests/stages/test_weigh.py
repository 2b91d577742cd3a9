import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg import Sum, Update, Work, train
from fedavg.errors import PlanError
from fedavg.setup import simulation
from fedavg.stages import make_stage
from toys import toy_plan

RNG = np.random.default_rng(0)
WORK = Work(round=1, epochs=1, batch=10, lr=0.1)


@pytest.mark.parametrize(("text", "n", "weight"), [("weigh", 7, 1), ("weigh:equal", 7, 1), ("weigh:cap=10", 7, 0.7),
                                                   ("weigh:10", 20, 1)])  # fmt: skip
def test_weights_by_hand(text, n, weight):
    assert make_stage(text).on_client(Update(torch.zeros(1), n), WORK, RNG).weight == weight


def test_the_denominator_by_hand():
    """Clients have 7, 12, 0, 5, 20 and 9 examples. With a cap of 10: 0.7 + 1 + 0.5 + 1 + 0.9, of which 3 in 5 come."""
    capped, equal = (simulation(toy_plan(stages=(text,)))[0].stages[0] for text in ("weigh:cap=10", "weigh:equal"))
    total = Sum(torch.tensor([6.0]), weight=2.2, count=2)
    assert capped.on_sum(total, WORK, RNG).weight == pytest.approx(4.1 * 3 / 5)
    assert equal.on_sum(total, WORK, RNG).mean.tolist() == [2.0]


def test_the_total_may_be_told():
    stage = simulation(toy_plan(stages=("weigh:cap=10:total=100",)))[0].stages[0]
    assert stage.denominator == pytest.approx(100 * 3 / 5)


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6))
def test_no_client_counts_for_more_than_one(cap, n):
    stage = make_stage(f"weigh:cap={cap}")
    assert 0 < stage.on_client(Update(torch.zeros(1), n), WORK, RNG).weight <= 1
    assert stage.on_arrival(Update(torch.zeros(1), n), WORK).weight <= 1


def test_equal_weights_are_the_plain_mean():
    """One round in which all five clients take part: the mean of their changes, whatever they weigh."""
    start, equal = list(train(toy_plan(C=1, rounds=1, stages=("weigh:equal",))))
    alone = []
    for k in (0, 1, 3, 4, 5):
        from fedavg.client import Client

        setup, data = simulation(toy_plan())
        trainer = setup.new_trainer(data.client(0))
        client = Client(k, data.client(k), trainer, 0, 1, {})
        alone.append(setup.algorithm.client_update(client, start.state.weights, setup.plan.work(1)).vector)
    moved = equal.state.weights - start.state.weights
    torch.testing.assert_close(moved, torch.stack(alone).mean(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("text", ["weigh:0", "weigh:-1", "weigh:inf", "weigh:nan", "weigh:much", "weigh:1:total=-1"])
def test_a_bad_cap_is_refused(text):
    with pytest.raises(PlanError, match="weigh: got .*expected 'weigh:equal'"):
        make_stage(text)
