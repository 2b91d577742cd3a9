"""What every algorithm in the registry must do."""

import pytest
import torch

from fedavg import train
from fedavg.algorithms import ALGORITHMS
from fedavg.errors import PlanError
from fedavg.server import Round
from toys import toy_data, toy_plan

#: Settings that fit an algorithm and give it enough work to learn the toy.
SETTINGS = {
    "fedavg": {"rounds": 15},
    "fedsgd": {"E": 1, "B": "inf", "rounds": 40, "lr": 0.5},
    "oneshot": {"rounds": 1, "E": 60, "C": 1},
    "sgd": {"E": 1, "rounds": 80},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns(name):
    events = [e for e in train(toy_plan(algorithm=name, **SETTINGS[name])) if isinstance(e, Round)]
    assert events[-1].test["accuracy"] > 0.85
    assert events[-1].test["loss"] < 0.6 < 1.0986  # log 3, where it starts


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_bits_twice_and_on_any_number_of_workers(name):
    plan = toy_plan(algorithm=name, **{**SETTINGS[name], "rounds": min(SETTINGS[name]["rounds"], 5)})
    weights = []
    for workers in (1, 2, 3):
        *_, last = train(toy_plan(**{**SETTINGS[name], "algorithm": name, "rounds": plan.rounds, "workers": workers}))
        weights.append(last.state.weights)
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "fedsgd", "E": 1, "B": 10}, "fedsgd: got E=1, B=10; expected E=1 and B=inf"),
        ({"algorithm": "oneshot", "rounds": 3}, "oneshot: got rounds=3; expected rounds=1"),
        ({"algorithm": "sgd", "E": 2}, "sgd: got E=2; expected E=1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(PlanError, match=message):
        next(train(toy_plan(data=toy_data(), **changes)))
