import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg import native
from fedavg.errors import Diverged
from fedavg.sums import BLOCK, SOURCE, ExactSum, checked_bound, look, to_float

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


def with_and_without_kernels(test):
    """What a function gives, by the kernel where there is one, and by NumPy."""
    by_kernel = test()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda source: None)
        return by_kernel, test()


@pytest.mark.parametrize("size", [1.0, 1e8])  # the second is too large for rounding by an addition
def test_large_numbers_round_alike_with_and_without_kernels(size):
    vector = (size * torch.from_numpy(np.random.default_rng(3).standard_normal(3000).astype(np.float32))).tolist()
    by_kernel, by_numpy = with_and_without_kernels(lambda: total([(vector, 3.7)], 3000))
    assert torch.equal(by_kernel, by_numpy)


@given(st.integers(0, 2**32), st.sampled_from([1, 63, 1000, 3077]), st.sampled_from([0.0, 0.9, 1.0]))
def test_one_pass_looks_and_adds_as_two_do(seed, size, zeros):
    """Also where whole blocks are zero, which are passed over."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(size) * (np.repeat(rng.random(size // 50 + 1), 50)[:size] >= zeros)
    vector, signs = torch.from_numpy(values.astype(np.float32)), rng.choice(np.array([-1, 1], np.int8), size)
    in_two, in_one = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)
    twice, once = ExactSum(in_two), ExactSum(in_one)
    expected = look(vector, signs, 1000)
    twice.add(vector, 3.7, expected.largest)
    found = once.look_and_add(vector, 3.7, signs, 1000)
    assert (found.largest, found.norm) == (expected.largest, expected.norm)
    assert found.folded.tobytes() == expected.folded.tobytes()
    assert torch.equal(in_one, in_two)
    assert once.bound == twice.bound


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30, 2e9])
@pytest.mark.parametrize("place", [3, 1500, 2999])
def test_one_pass_leaves_no_trace_of_what_is_refused(bad, place):
    """The numbers before the bad one were added already, and are taken back. 2e9 alone would fit, but not with 1e9."""
    vector, signs = torch.linspace(-1, 1, 3000), np.ones(3000, np.int8)
    ring = torch.zeros(3000, dtype=torch.int64)
    exact = ExactSum(ring)
    exact.add(torch.full((3000,), 1e9), 1)
    before, bound = ring.clone(), exact.bound
    vector[place] = bad
    with pytest.raises(Diverged):
        exact.look_and_add(vector, 1, signs, 1000)
    assert torch.equal(ring, before)
    assert exact.bound == bound


def test_the_bounds_of_several_workers_add_up():
    assert checked_bound(3, 4) == 7
    with pytest.raises(Diverged):
        checked_bound(2**62, 2**62)


def test_a_look_by_hand():
    """(3, -4, 12) with signs (+, -, -) in two columns: 3 - 12 and 4; the norm is 13."""
    found = look(torch.tensor([3.0, -4.0, 12.0]), np.array([1, -1, -1], np.int8), 2)
    assert (found.largest, found.norm, found.folded.tolist()) == (12.0, 13.0, [-9.0, 4.0])


@given(st.integers(0, 2**32), st.sampled_from([1, 40, 1000, 3077]), st.sampled_from([1e-30, 1.0, 1e30]))
def test_a_look_by_the_kernel_is_numpy_s(seed, size, scale):
    """Also where squares in float32 would vanish or overflow."""
    rng = np.random.default_rng(seed)
    vector = torch.from_numpy((scale * rng.standard_normal(size)).astype(np.float32))
    signs = rng.choice(np.array([-1, 1], np.int8), size)
    by_kernel = look(vector, signs, 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda source: None)
        by_numpy = look(vector, signs, 1000)
    assert by_kernel.largest == by_numpy.largest
    assert by_kernel.norm == pytest.approx(by_numpy.norm, rel=1e-5)
    assert by_kernel.folded.tobytes() == by_numpy.folded.tobytes()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [5, 99])
def test_a_look_sees_what_is_not_finite(bad, place):
    vector = torch.ones(100)
    vector[place] = bad
    assert not np.isfinite(look(vector, np.ones(100, np.int8), 80).largest)
