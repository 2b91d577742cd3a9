import numpy as np
import torch

from fedavg.codecs import make_codec


def test_by_hand():
    """k = 2 of 8: -3 and 1 have the mean magnitude 2. b* = 1 + floor(log2(0.4812 / 0.2877)) = 1; gaps 1 and 3."""
    codec = make_codec("stc:0.25")
    vector = torch.tensor([0.1, -3.0, 0.2, 0, -0.3, 1.0, 0, 0.9])
    frame = codec.encode(vector, np.random.default_rng())
    remainders, quotients = 0b11, 0b101  # r = 1, 1; q = 0, 1: "1", "01"
    assert frame == np.array(2.0, "<f4").tobytes() + bytes([0b01, remainders, quotients])
    assert codec.decode(frame, 8).tolist() == [0, -2, 0, 0, 0, 2, 0, 0]


def test_bits_for_each_number_kept():
    """At p = 1 %: a sign, and about 8.1 bits for the place."""
    vector = torch.from_numpy(np.random.default_rng(0).standard_normal(200_000).astype(np.float32))
    frame = make_codec("stc:0.01").encode(vector, np.random.default_rng())
    assert 8 * (len(frame) - 4) / 2000 < 9.2
