import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg import native
from fedavg.errors import Diverged
from fedavg.sums import BLOCK, SOURCE, ExactSum, checked_bound, to_float

floats = st.floats(-100, 100, width=32)


def total(updates, size):
    ring = torch.zeros(size, dtype=torch.int64)
    exact = ExactSum(ring)
    for vector, weight in updates:
        exact.add(torch.tensor(vector), weight)
    return ring


def test_a_weighted_sum_by_hand():
    ring = total([([0.5, -1.0], 3), ([0.25, 2.0], 2)], 2)
    assert to_float(ring).tolist() == [2.0, 1.0]
    assert ring.tolist() == [2 * 2**32, 2**32]


def test_float_addition_would_have_depended_on_the_order():
    updates = [([1e4], 1), ([1e-4], 1), ([-1e4], 1)]
    in_float32 = {
        float(sum((torch.tensor(v[0]) for v, _ in order), torch.zeros(()))) for order in itertools.permutations(updates)
    }
    exact = {int(total(list(order), 1)) for order in itertools.permutations(updates)}
    assert len(in_float32) > 1
    assert len(exact) == 1


@given(
    st.lists(st.tuples(st.lists(floats, min_size=3, max_size=3), st.integers(1, 10_000)), min_size=1, max_size=8),
    st.randoms(),
)
def test_any_order_and_any_split_over_workers_gives_the_same_bits(updates, random):
    whole = total(updates, 3)
    shuffled = random.sample(updates, len(updates))
    cut = random.randint(0, len(updates))
    assert torch.equal(whole, total(shuffled[:cut], 3) + total(shuffled[cut:], 3))


@given(st.lists(st.tuples(floats, st.integers(1, 10_000)), min_size=1, max_size=8))
def test_the_error_is_below_the_step_of_the_ring(updates):
    expected = sum(float(v) * w for v, w in updates)
    got = float(to_float(total([([v], w) for v, w in updates], 1)))
    assert abs(got - expected) <= len(updates) * 2**-32


@pytest.mark.skipif(native.library(SOURCE) is None, reason="no kernels here")
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40), st.integers(1, 10_000))
def test_the_kernel_rounds_as_numpy_does(values, weight):
    """To whole multiples of 2^-32, of two the even one: 1.5 and 2.5 steps become 2."""
    vector = torch.tensor([*values, 1.5 * 2**-32 / weight, 2.5 * 2**-32 / weight])
    by_kernel = total([(vector.tolist(), weight)], len(vector))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda source: None)
        assert torch.equal(total([(vector.tolist(), weight)], len(vector)), by_kernel)


def test_vectors_longer_than_a_block():
    vector = torch.linspace(-1, 1, 2 * BLOCK + 7)
    ring = torch.zeros(len(vector), dtype=torch.int64)
    ExactSum(ring).add(vector, 4)
    torch.testing.assert_close(to_float(ring), 4 * vector.double(), atol=2**-32, rtol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused_whole(bad):
    ring = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(Diverged, match="not finite"):
        ExactSum(ring).add(torch.tensor([1.0, bad]), 1)
    assert ring.tolist() == [0, 0]


def test_an_overflow_is_noticed_before_it_happens():
    ring = torch.zeros(1, dtype=torch.int64)
    exact = ExactSum(ring)
    exact.add(torch.tensor([1.5e9]), 1)
    before = ring.clone()
    with pytest.raises(Diverged, match="may reach 3e\\+09; expected less than 2.15e\\+09"):
        exact.add(torch.tensor([1.5e9]), 1)
    assert torch.equal(ring, before)


def test_the_bounds_of_several_workers_add_up():
    assert checked_bound(3, 4) == 7
    with pytest.raises(Diverged):
        checked_bound(2**62, 2**62)
