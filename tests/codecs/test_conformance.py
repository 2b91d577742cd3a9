"""What every codec in the registry must do."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedavg.codecs import CODECS, make_codec
from fedavg.errors import DataError, Diverged, PlanError
from fedavg.testing import check_codec

#: Every codec, with the settings that change its frames.
SPECS = (
    "float32", "float16", "bfloat16", "quantise:8", "quantise:4", "quantise:2", "quantise:1", "quantise:8:rotate=false",
    "quantise:1:rotate=false", "mask:0.3", "mask:0.3:unbiased=false", "mask:1", "lowrank:2", "lowrank:2:unbiased=false",
    "topk:0.1", "topk:1", "stc:0.1", "stc:0.5", "stc:1", "entropy", "entropy:float16", "entropy:quantise:4",
    "entropy:lowrank:2", "entropy:stc:0.1",
)  # fmt: skip
#: The largest relative error of a round trip, and of numbers too small for the format the absolute one.
PRECISION = {
    "float32": (0, 0), "float16": (2**-11, 2**-25), "bfloat16": (2**-8, 2**-134), "entropy:float32": (0, 0),
    "topk:1": (0, 0), "mask:1": (0, 0), "quantise:8": (0, 40), "quantise:8:rotate=false": (0, 8),
}  # fmt: skip
UNBIASED = ("quantise:8", "quantise:2", "quantise:1", "quantise:1:rotate=false", "mask:0.3", "lowrank:2")
RESIDUAL = ("topk:0.1", "stc:0.1", "mask:0.3:unbiased=false", "lowrank:2:unbiased=false", "entropy:stc:0.1")

vectors = st.lists(st.floats(-1000, 1000, width=32), max_size=40).map(lambda v: torch.tensor(v, dtype=torch.float32))


def rng(seed=0):
    return np.random.default_rng(seed)


def bound(spec, size):
    """A codec, told that the vector is a matrix and a bias."""
    rows = max(size // 6, 1)
    return make_codec(spec).bind(lambda: [(rows, 5), (size - 5 * rows,)] if size >= 5 else [(size,)])


def normal(size, seed=1):
    return torch.from_numpy(rng(seed).standard_normal(size, np.float32))


def test_all_of_the_registry_is_covered():
    assert {make_codec(spec).name for spec in SPECS} == set(CODECS)
    assert all(make_codec(name).name == name for name in CODECS)


@pytest.mark.parametrize("spec", PRECISION)
@given(vector=vectors)
def test_a_round_trip_is_as_exact_as_promised(spec, vector):
    relative, absolute = PRECISION[spec]
    got = bound(spec, len(vector)).decode(bound(spec, len(vector)).encode(vector, rng()), len(vector))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, vector, rtol=relative, atol=absolute)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=40)
@given(vector=vectors)
@example(vector=torch.zeros(0))
@example(vector=torch.tensor([-3.5]))
@example(vector=torch.zeros(37))
@example(vector=torch.full((33,), -0.25))
@example(vector=normal(5000))
def test_any_vector_makes_a_frame_that_can_be_read_and_is_not_too_long(spec, vector):
    codec, before = bound(spec, len(vector)), vector.clone()
    frame = codec.encode(vector, rng())
    assert len(frame) <= codec.max_bytes(len(vector))
    decoded = codec.decode(frame, len(vector))
    assert decoded.shape == vector.shape
    assert decoded.dtype == torch.float32
    assert torch.isfinite(decoded).all()
    assert torch.equal(vector, before)


@pytest.mark.parametrize("spec", SPECS)
def test_it_passes_the_check_that_users_have(spec):
    """Zeros stay zeros, the same frame twice, divergence is not hidden, frames of a wrong length are refused."""
    check_codec(make_codec(spec))


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=60)
@given(data=st.data())
def test_a_hostile_frame_is_refused_or_harmless(spec, data):
    codec = bound(spec, 30)
    honest = codec.encode(normal(30), rng())
    places = st.tuples(st.integers(0, len(honest) - 1), st.integers(1, 255))
    mutated = st.lists(places, min_size=1, max_size=4).map(lambda changes: changed(honest, changes))
    frame = data.draw(st.one_of(mutated, st.binary(max_size=2 * len(honest))))
    try:
        decoded = codec.decode(frame, 30)
    except DataError:
        return
    assert decoded.shape == (30,)
    assert torch.isfinite(decoded).all()


def changed(frame, changes):
    changed = bytearray(frame)
    for place, flip in changes:
        changed[place] ^= flip
    return bytes(changed)


@pytest.mark.parametrize("spec", UNBIASED)
def test_the_expectation_is_the_vector(spec):
    vector, codec, tries = normal(60), bound(spec, 60), 1500
    decoded = torch.stack([codec.decode(codec.encode(vector, rng(seed)), 60) for seed in range(tries)]).double()
    error = (decoded.mean(0) - vector).abs()
    assert (error <= 5 * decoded.std(0) / tries**0.5 + 1e-6).all()
    assert decoded.std(0).mean() > 1e-4  # it is random at all


@pytest.mark.parametrize("spec", SPECS)
def test_only_a_codec_that_is_biased_keeps_a_residual(spec):
    assert make_codec(spec).keeps_residual == spec.startswith(("topk", "stc", "entropy:stc")) or "=false" in spec


@pytest.mark.parametrize("spec", RESIDUAL)
def test_what_is_left_out_is_less_than_what_was_there(spec):
    assert make_codec(spec).keeps_residual
    codec, vector = bound(spec, 300), normal(300)
    left = vector - codec.decode(codec.encode(vector, rng()), 300)
    assert left.norm() < 0.99 * vector.norm()  # so error feedback catches up (Stich et al. 2018, definition 2.1)


@pytest.mark.parametrize(("name", "width"), [("float32", 4), ("float16", 2)])
def test_bytes_by_hand(name, width):
    frame = make_codec(name).encode(torch.tensor([1.0, -2.0]), rng())
    assert frame == np.array([1.0, -2.0], f"<f{width}").tobytes()


def test_bfloat16_is_the_upper_half_rounded_to_even():
    # 1 + 2^-8 lies between 1 and 1 + 2^-7: to even, down; 1 + 3 2^-8: to even, up
    vector = torch.tensor([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -2.0])
    frame = make_codec("bfloat16").encode(vector, rng())
    assert frame == np.array([0x3F80, 0x3F80, 0x3F82, 0xC000], "<u2").tobytes()


@given(vector=vectors)
def test_bfloat16_agrees_with_pytorch(vector):
    frame = make_codec("bfloat16").encode(vector, rng())
    assert torch.equal(make_codec("bfloat16").decode(frame, len(vector)), vector.bfloat16().float())


def test_float16_refuses_what_it_can_not_hold():
    with pytest.raises(Diverged, match=r"holds 7e\+04; float16 holds at most 65504"):
        make_codec("float16").encode(torch.tensor([7e4]), rng())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("stc:0", "from 1e-6 to 1"),
        ("topk:1.5", "from 1e-6 to 1"),
        ("mask:nan", "from 1e-6 to 1"),
        ("quantise:3", "expected 1, 2, 4 or 8"),
        ("lowrank:0", "expected at least 1"),
        ("lowrank:2:true:3", "expected 'lowrank:\\[rank=4\\]:\\[unbiased=True\\]'"),
        ("entropy:gzip", "got 'gzip'; expected one of float32"),
        ("entropy:entropy:stc", "entropy-coded already"),
    ],
)
def test_a_bad_setting_is_refused(spec, message):
    with pytest.raises(PlanError, match=message):
        make_codec(spec)
