"""Settings of parts that are given as objects: a value of the wrong type is refused by its name."""

from dataclasses import dataclass

import numpy as np
import pytest

import fedavg
from fedavg.errors import PlanError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedavg.SGD(momentum="x"), "optimizer sgd: momentum is 'x'; expected a number"),
        (lambda: fedavg.Clip(None), "stages clip: norm is None; expected a number"),
        (lambda: fedavg.FedProx("0.1"), "algorithm fedprox: mu is '0.1'; expected a number"),
        (lambda: fedavg.MacroF1(classes=2.5), "metrics f1: classes is 2.5; expected a whole number"),
        (lambda: fedavg.MultiKrum(0.2, keep="all"), "multikrum: keep is 'all'; expected a whole number or None"),
        (lambda: fedavg.Krum([0.2]), r"reducer krum: faulty is \[0.2\]; expected a number"),
        (lambda: fedavg.Cosine("a"), "lr cosine: start is 'a'; expected a number"),
        (lambda: fedavg.SGD(nesterov=1), "optimizer sgd: nesterov is 1; expected True or False"),
        (lambda: fedavg.TopK(np.zeros(1000)), r"codec topk: fraction is array\(.{90} \.\.\.; expected a number"),
    ],
)  # fmt: skip
def test_a_setting_of_the_wrong_type_is_named(make, message):
    with pytest.raises(PlanError, match=message):
        make()


def test_numbers_of_numpy_are_numbers():
    assert fedavg.FedProx(np.float32(0.5)) == fedavg.FedProx(0.5)
    assert fedavg.MacroF1(np.int64(3)) == fedavg.MacroF1(3)
    assert fedavg.SGD(momentum=np.float64(0.9), nesterov=np.True_) == fedavg.SGD(momentum=0.9, nesterov=True)


@dataclass(frozen=True)
class Own(fedavg.FedAvg):
    name = "own"
    factor: float
    words: "NotHere" = ()  # noqa: F821


def test_a_users_own_part_is_left_alone_where_its_types_can_not_be_read():
    assert Own("a", 5).words == 5


class Bare(fedavg.Sampler):
    def draw(self, pool):
        return pool.clients[:1]


def test_a_part_without_settings_takes_none():
    Bare()
    with pytest.raises(TypeError, match=r"Bare\(\) takes no arguments"):
        Bare(5)
