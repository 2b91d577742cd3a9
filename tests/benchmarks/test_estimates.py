"""The table of predictions says what the record says."""

import pytest

import held_out
from estimates import chosen, refreshed


def test_rows_get_the_ratios_of_the_record_and_others_stay():
    text = "| W1 | 0.94 | 1.01 |\n| W10 | 0.93 | 0.77 |\n| W1 | other | table |\n"
    new = refreshed(text, {"W1": {"ratio_on_cores": 1.2, "ratio_mb": 0.9}})
    assert new.splitlines() == ["| W1 | 1.20 | 0.90 |", "| W10 | 0.93 | 0.77 |", "| W1 | other | table |"]


def test_plans_are_asked_for_by_the_beginning_of_their_names():
    assert chosen(["W10", "W1"], held=False) == ["W1", "W10"]
    assert chosen(["X2"], held=True) == ["X2: 2NN, AdamW, B=20"]
    assert chosen([], held=True) == list(held_out.PLANS)


@pytest.mark.parametrize("name", ["X3: CNN, B=inf, 8-bit updates", "X8: 2NN, clients of 20 to 3,000 examples"])
def test_plans_that_are_held_out_are_whole(name):
    assert held_out.plan_of(name, workers=2).rounds == held_out.ROUNDS
