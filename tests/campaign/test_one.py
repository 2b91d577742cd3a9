"""When a run of an order ends."""

import pytest
from paper_toys import TOY_SETTING

from fedavg.campaign.one import Overseer, Stop
from fedavg.campaign.orders import Order, plan_values, write_order
from fedavg.campaign.racing import LOST
from fedavg.campaign.records import CAP, DIVERGED, TARGET


@pytest.fixture
def overseer(tmp_path):
    plan = plan_values(TOY_SETTING.plan(0.1))
    write_order(tmp_path / "order.json", Order(plan, 0.97, 100, CAP, "enough", 0, "a command"))
    return Overseer(tmp_path / "order.json")


def how_it_ends(overseer, accuracies):
    """The round in which it is stopped, and how."""
    for round, accuracy in enumerate(accuracies, start=1):
        try:
            overseer.check(round, [accuracy])
        except Stop as end:
            return round, end.stopped, str(end)
    return None


def test_at_the_target(overseer):
    assert how_it_ends(overseer, [0.9, 0.96, 0.97, 0.98]) == (3, TARGET, "reached 0.97 in round 3")


def test_at_the_cap(overseer):
    assert how_it_ends(overseer, [0.9] * 101) == (100, CAP, "stopped after round 100: enough")


def test_when_it_has_fallen_apart_for_good(overseer):
    curve = [0.3, 0.96] + [0.1] * 60
    assert how_it_ends(overseer, curve) == (2 + LOST, DIVERGED, f"fell from 0.96 to 0.1 by round {2 + LOST}")


def test_one_that_comes_back_goes_on(overseer):
    assert how_it_ends(overseer, [0.96] + [0.1] * (LOST - 1) + [0.49] + [0.1] * (LOST - 1)) is None


def test_what_was_evaluated_before_it_was_taken_up_again_counts(overseer):
    overseer.check(21, [0.96] + [0.1] * 20)
    assert how_it_ends(overseer, [0.1] * 60)[:2] == (LOST - 20, DIVERGED)
    with pytest.raises(Stop, match="reached"):
        overseer.check(21, [0.98] + [0.1] * 20)


def test_rounds_without_an_evaluation_say_nothing(overseer):
    for round in range(1, 100):
        overseer.check(round, [])
    with pytest.raises(Stop, match="enough"):
        overseer.check(100, [])
