import tracemalloc
import zlib

import numpy as np
import pytest
import torch

from fedavg.codecs import make_codec
from fedavg.codecs.entropy import HEADER
from fedavg.errors import DataError


def update(size=50_000):
    return torch.from_numpy(np.random.default_rng(0).standard_normal(size).astype(np.float32)) / 100


def length(spec):
    return len(make_codec(spec).encode(update(), np.random.default_rng(0)))


def test_it_saves_what_there_is_to_save():
    assert length("entropy:quantise:4") < 0.85 * length("quantise:4")
    assert length("entropy:float32") < 0.92 * length("float32")
    assert length("entropy:stc:0.01") <= length("stc:0.01") + HEADER.size  # is as short as can be already


def test_it_changes_nothing():
    inner, coded = make_codec("quantise:4"), make_codec("entropy:quantise:4")
    frames = [codec.encode(update(), np.random.default_rng(0)) for codec in (inner, coded)]
    assert torch.equal(inner.decode(frames[0], 50_000), coded.decode(frames[1], 50_000))


def test_a_bomb_is_refused_before_it_unfolds():
    coder = zlib.compressobj(wbits=-15, level=9)
    body = coder.compress(bytes(50_000_000)) + coder.flush()
    frame = HEADER.pack(True, len(body)) + body
    codec = make_codec("entropy:quantise:8:rotate=false")
    size = 60_000
    assert len(frame) < codec.max_bytes(size)
    tracemalloc.start()
    with pytest.raises(DataError, match="more than .* bytes; expected at most that"):
        codec.decode(frame, size)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
