import math

import pytest
import torch

import fedavg
from fedavg import Constant, Cosine, Plan
from fedavg.errors import PlanError


def rates(rounds=5, **changes):
    plan = Plan(rounds=rounds, **changes)
    return [plan.work(t).lr for t in range(1, rounds + 1)]


def test_rates_by_hand():
    assert rates(lr=0.1) == [0.1] * 5
    assert rates(lr="0.1,3:0.01") == [0.1, 0.1, 0.01, 0.01, 0.01]
    assert rates(lr="exponential:0.8:0.5") == pytest.approx([0.8, 0.4, 0.2, 0.1, 0.05])
    assert rates(lr="step:0.8:every=2:factor=0.5") == pytest.approx([0.8, 0.8, 0.4, 0.4, 0.2])
    assert rates(lr="cosine:1:end=0.2") == pytest.approx(
        [0.2 + 0.4 * (1 + math.cos(math.pi * t / 5)) for t in range(5)]
    )
    assert rates(lr="cosine:1:end=0.1:rounds=2") == pytest.approx([1, 0.55, 0.1, 0.1, 0.1])
    assert rates(lr="constant:0.9:warmup=3") == pytest.approx([0.3, 0.6, 0.9, 0.9, 0.9])
    assert rates(lr="cosine:1:warmup=2") == pytest.approx([0.5, 1, 1, 0.75, 0.25])


def test_a_cosine_is_pytorchs_and_never_zero():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], 0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7)
    expected = []
    for _round in range(7):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates(7, lr="cosine:0.3") == pytest.approx(expected)
    assert min(rates(7, lr="cosine:0.3")) > 0


def test_decay_multiplies_whatever_the_rate_is():
    assert rates(lr="0.1,3:0.01", lr_decay=0.5) == pytest.approx([0.1, 0.05, 0.0025, 0.00125, 0.000625])
    assert rates(lr=0.8, lr_decay=0.5) == rates(lr="exponential:0.8:0.5")


def test_old_plans_keep_their_digests():
    assert Plan().digest == Plan(lr=0.1, lr_decay=1.0, optimizer="sgd", drop_last=False).digest
    assert Plan(lr=0.215, lr_decay=0.99).digest == "6400ebe47e3ed50c"


def test_an_object_is_the_same_plan_as_its_text():
    assert Plan(lr=Cosine(0.1, warmup=2)).digest == Plan(lr="cosine:0.1:warmup=2").digest
    assert rates(lr=Constant(0.9, warmup=3)) == rates(lr="constant:0.9:warmup=3")


def test_a_users_own_function_counts_by_its_answers():
    plan = Plan(lr=lambda t: 0.3 if t < 3 else 0.1 / t, rounds=4)
    assert [plan.work(t).lr for t in (1, 2, 3, 4)] == [0.3, 0.3, 0.1 / 3, 0.1 / 4]
    again = fedavg.plan.make_plan({name: value for name, value in plan.to_dict().items() if value is not None})
    assert again.digest == plan.digest
    assert Plan(lr=lambda t: 0.3, rounds=4).digest == Plan(lr=0.3, rounds=4).digest
    assert Plan(lr=lambda t: 0.3 / t, rounds=4).digest != plan.digest


@pytest.mark.parametrize(
    ("lr", "message"),
    [
        (0, "lr: got 0; expected a number above 0"),
        ("-1", "lr: got '-1'; expected a number above 0"),
        (True, "lr: got True; expected a number above 0"),
        ("fast", "lr: got 'fast'; expected a number above 0, values by round"),
        ("0.1,1:0.2", "rounds in rising order"),
        ("cosine:0", "cosine has start 0.0; expected a finite number above 0"),
        ("cosine:0.1:rounds=3", "cosine has end 0.0; expected a number above 0, since it is reached"),
        ("step:0.1:every=0", "step has every 0; expected at least 1"),
        ("cosine", "lr: got 'cosine'; expected 'cosine:START"),
        (lambda t: 0.1 * (2 - t), "lr: the function cannot be asked for rounds 1 to 100"),
        (lambda: 0.1, "lr: the function cannot be asked"),
    ],
)
def test_what_is_no_rate_is_refused(lr, message):
    with pytest.raises(PlanError, match=message):
        Plan(lr=lr)
