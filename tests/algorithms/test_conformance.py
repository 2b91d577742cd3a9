"""What every algorithm in the registry must do."""

import numpy as np
import pytest

from fedavg import ArrayData, Examples, train
from fedavg.algorithms import ALGORITHMS, make_algorithm
from fedavg.errors import PlanError
from fedavg.server import Round
from fedavg.testing import check_algorithm
from toys import blobs, toy_data, toy_plan

#: For each algorithm, settings with which it learns the toy, whose clients have unlike data.
SETTINGS = {
    "fedavg": {"rounds": 15},
    "fedsgd": {"E": 1, "B": "inf", "rounds": 40, "lr": 0.5},
    "oneshot": {"rounds": 1, "E": 60, "C": 1},
    "sgd": {"E": 1, "C": 0, "rounds": 80},
    "fedprox": {"algorithm": "fedprox:0.1", "rounds": 20},
    "fedavgm": {"algorithm": "fedavgm:0.5", "rounds": 20},
    "fedadagrad": {"algorithm": "fedadagrad:0.1", "rounds": 30},
    "fedadam": {"algorithm": "fedadam:0.05", "rounds": 30},
    "fedyogi": {"algorithm": "fedyogi:0.05", "rounds": 30},
    "fednova": {"rounds": 20},
    "scaffold": {"rounds": 25},
    "feddyn": {"algorithm": "feddyn:1", "rounds": 15},
    "fedbuff": {"algorithm": "fedbuff:2", "rounds": 30, "C": 0.8},
    "adaptive": {"algorithm": "adaptive:600", "E": 1, "C": 1, "rounds": 60},
}


def plan(name, **changes):
    """Two of the three classes at each client: pathological, in small."""
    return toy_plan(**{"algorithm": name, "data": unlike_data(), **SETTINGS[name], **changes})


def unlike_data():
    x, y = blobs(90, seed=1)
    parts = [np.flatnonzero((y.numpy() != k % 3) & (np.arange(90) % 5 == k)) for k in range(5)]
    return ArrayData("unlike", x, y, [*parts, np.arange(0)], Examples(*blobs(60, seed=2)))


def test_every_algorithm_is_tried():
    assert SETTINGS.keys() == ALGORITHMS.keys()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns_from_clients_with_unlike_data(name):
    events = [e for e in train(plan(name)) if isinstance(e, Round)]
    assert events[-1].test["accuracy"] > 0.85
    assert events[-1].test["loss"] < 0.6 < 1.0986  # log 3, where it starts


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_passes_the_check_that_users_have(name):
    """The same bits twice and on any number of workers; a resumed run equals the uninterrupted one."""
    settings = {key: value for key, value in SETTINGS[name].items() if key != "algorithm"}
    check_algorithm(make_algorithm(SETTINGS[name].get("algorithm", name)), **settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "fedsgd", "E": 1, "B": 10}, "fedsgd: got E=1, B=10; expected E=1 and B=inf"),
        ({"algorithm": "oneshot", "rounds": 3}, "oneshot: got rounds=3; expected rounds=1"),
        ({"algorithm": "sgd", "E": 2}, "sgd: got E=2; expected E=1"),
        ({"algorithm": "fedprox:-1"}, "fedprox: mu is -1.0; expected a finite number from 0"),
        ({"algorithm": "fedavgm:1.5"}, "fedavgm: momentum is 1.5; expected a finite number from 0 to 1"),
        ({"algorithm": "fedadam:0"}, "fedadam: lr is 0.0; expected a finite number above 0"),
        ({"algorithm": "fedyogi:beta2=2"}, "fedyogi: beta2 is 2.0; expected a finite number from 0 to 1"),
        ({"algorithm": "fedadagrad:tau=0"}, "fedadagrad: tau is 0.0; expected a finite number above 0"),
        ({"algorithm": "scaffold:nan"}, "scaffold: lr is nan; expected a finite number above 0"),
        ({"algorithm": "fedbuff:0"}, "fedbuff: buffer is 0; expected a finite number from 1"),
        ({"algorithm": "adaptive:100", "C": 1}, "adaptive: got C=1, E=2; expected C=1 and E=1"),
        ({"algorithm": "adaptive:10", "C": 1, "E": 1}, "budget is 10; expected at least 11"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(PlanError, match=message):
        next(train(toy_plan(data=toy_data(), **changes)))
