import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg import Sum, Update, Work
from fedavg.errors import PlanError
from fedavg.stages import parse_stage
from fedavg.stages.clip import Clip

RNG = np.random.default_rng(0)
WORK = Work(round=1, epochs=1, batch=10, lr=0.1)


def test_by_hand():
    """(3, 4) has norm 5: clipped to 1 it is (0.6, 0.8)."""
    clipped = Clip(1.0).on_client(Update(torch.tensor([3.0, 4.0]), weight=7), WORK, RNG)
    assert clipped.vector.tolist() == pytest.approx([0.6, 0.8])
    assert clipped.weight == 7


def test_a_short_update_passes_unchanged():
    update = Update(torch.tensor([0.3, 0.4]), weight=7)
    assert Clip(1.0).on_client(update, WORK, RNG).vector is update.vector


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_the_bound_is_never_exceeded(values, norm):
    clipped = Clip(norm).on_client(Update(torch.tensor(values), weight=1), WORK, RNG)
    assert float(clipped.vector.double().norm()) <= norm * (1 + 1e-6)


def test_the_sum_is_left_alone():
    total = Sum(torch.ones(2), weight=2, count=2)
    assert Clip(1.0).on_sum(total, WORK, RNG) is total


@pytest.mark.parametrize("text", ["clip", "clip:", "clip:far", "clip:0", "clip:-1", "clip:nan", "clip:inf", "shrink:1"])
def test_a_bad_stage_is_refused(text):
    with pytest.raises(PlanError, match="expected"):
        parse_stage(text)
