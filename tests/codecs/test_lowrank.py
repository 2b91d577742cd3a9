import numpy as np
import pytest
import torch

from fedavg.codecs import make_codec
from fedavg.codecs.lowrank import LowRank
from fedavg.setup import simulation
from toys import toy_plan

SHAPES = ((20, 6), (5, 30), (7,), (4, 3, 3))


def codec(spec):
    return make_codec(spec).bind(lambda: SHAPES)


def vector():
    return torch.from_numpy(np.random.default_rng(0).standard_normal(120 + 150 + 7 + 36).astype(np.float32))


def test_bytes_by_hand():
    # the seed, 2 numbers for each place of the shorter sides 6, 5 and 4, and the bias whole
    assert len(codec("lowrank:2").encode(vector(), np.random.default_rng(0))) == 8 + 4 * (2 * 6 + 2 * 5 + 7 + 2 * 4)


def test_the_nearest_in_the_space_of_the_left_factor():
    """What is decoded is a projection: projected once more, by the same seed, it stays as it is."""
    same = codec("lowrank:2:unbiased=false")
    once = same.decode(same.encode(vector(), np.random.default_rng(5)), len(vector()))
    twice = same.decode(same.encode(once, np.random.default_rng(5)), len(vector()))
    torch.testing.assert_close(twice, once, rtol=1e-4, atol=1e-5)
    left = vector() - once
    assert abs(float(left @ once)) < 1e-3  # at right angles
    assert torch.equal(once[270:277], vector()[270:277])


def test_a_full_rank_is_lossless():
    whole = codec("lowrank:30")
    assert torch.equal(whole.decode(whole.encode(vector(), np.random.default_rng(0)), 313), vector())


@pytest.mark.parametrize("spec", ["lowrank:1", "entropy:lowrank:1"])
def test_a_plan_binds_it_to_the_layers_of_its_model(spec):
    bound = simulation(toy_plan(codec=spec))[0].codec
    inner = bound if isinstance(bound, LowRank) else bound.inner
    assert inner.shapes == ((16, 8), (16,), (3, 16), (3,))
