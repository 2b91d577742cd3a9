import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg import ArrayData, Examples, train
from fedavg.data import HeldOut
from toys import toy_data, toy_plan


def counting(sizes):
    """Every example is its own row number."""
    total = sum(sizes)
    x, y = torch.arange(total)[:, None], torch.arange(total)
    parts = np.split(np.arange(total), np.cumsum(sizes)[:-1])
    return ArrayData("counting", x, y, parts, Examples(x[:1], y[:1]))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any), st.floats(0.01, 0.9), st.integers(0, 99))
def test_each_example_is_either_trained_on_or_held_out(sizes, share, seed):
    data = counting(sizes)
    split = HeldOut(data, share, seed)
    for k, n in enumerate(sizes):
        kept, held = split.client(k).y.tolist(), split.held(k).y.tolist()
        assert sorted(kept + held) == data.client(k).y.tolist()
        assert (len(kept), len(held)) == (split.sizes[k], split.held_sizes[k])
        assert abs(len(held) - share * n) <= 0.5 or len(kept) == 1
        assert kept or not n
        assert torch.equal(split.client(k).x[:, 0], split.client(k).y)


def test_the_split_follows_from_the_seed():
    a, b, c = (HeldOut(counting((50,)), 0.4, seed).held(0).y.tolist() for seed in (1, 1, 2))
    assert a == b != c


def test_fingerprints_tell_splits_apart():
    data = toy_data()
    assert (
        len({d.fingerprint for d in (data, HeldOut(data, 0.2, 0), HeldOut(data, 0.3, 0), HeldOut(data, 0.2, 1))}) == 4
    )


def test_a_plan_trains_without_what_it_holds_out():
    """n_k = 7, 12, 0, 5, 20, 9 without a quarter each (2, 3, 0, 1, 5, 2)."""
    *_, last = train(toy_plan(C=1, holdout=0.25, rounds=1))
    assert last.examples == (7 - 2) + (12 - 3) + (5 - 1) + (20 - 5) + (9 - 2)
