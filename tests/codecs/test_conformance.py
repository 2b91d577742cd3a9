"""What every codec in the registry must do."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg.codecs import CODECS, make_codec
from fedavg.errors import DataError

RNG = np.random.default_rng(0)
#: The largest relative error of a round trip, and of numbers too small for the format the absolute one.
PRECISION = {"float32": (0, 0), "float16": (2**-11, 2**-25)}


@pytest.mark.parametrize("name", CODECS)
@given(values=st.lists(st.floats(-1000, 1000, width=32), max_size=40))
def test_a_round_trip_is_as_exact_as_promised(name, values):
    vector = torch.tensor(values, dtype=torch.float32)
    frame = make_codec(name).encode(vector, RNG)
    relative, absolute = PRECISION[name]
    got = make_codec(name).decode(frame, len(vector))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, vector, rtol=relative, atol=absolute)


@pytest.mark.parametrize("name", CODECS)
def test_encoding_is_deterministic(name):
    vector = torch.linspace(-1, 1, 100)
    frames = {make_codec(name).encode(vector, np.random.default_rng(3)) for _ in range(3)}
    assert len(frames) == 1


@pytest.mark.parametrize(("name", "width"), [("float32", 4), ("float16", 2)])
def test_bytes_by_hand(name, width):
    frame = make_codec(name).encode(torch.tensor([1.0, -2.0]), RNG)
    assert len(frame) == 2 * width
    assert frame == np.array([1.0, -2.0], f"<f{width}").tobytes()


@pytest.mark.parametrize("name", CODECS)
def test_a_frame_of_the_wrong_length_is_refused(name):
    frame = make_codec(name).encode(torch.zeros(10), RNG)
    for bad in (frame[:-1], frame + b"\0", b""):
        with pytest.raises(DataError, match="bytes; expected"):
            make_codec(name).decode(bad, 10)
