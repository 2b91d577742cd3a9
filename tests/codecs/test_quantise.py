import numpy as np
import pytest
import torch

from fedavg.codecs import make_codec
from fedavg.codecs.quantise import _hadamard


@pytest.mark.parametrize("rows", [1, 2, 8, 64])
def test_the_transform_is_the_matrix(rows):
    matrix = np.ones((1, 1))
    while len(matrix) < rows:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    x = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
    np.testing.assert_allclose(_hadamard(x), matrix @ x, atol=1e-5)


def test_levels_by_hand():
    """Numbers that are levels already stay as they are: 0, 1/3, 2/3 and 1 of the range, two bits each."""
    codec = make_codec("quantise:2:rotate=false")
    frame = codec.encode(torch.tensor([-1.0, 5.0, 1.0, 3.0]), np.random.default_rng())
    assert frame[8:] == np.array([-1.0, 5.0], "<f4").tobytes() + bytes([0b10_01_11_00])
    assert codec.decode(frame, 4).tolist() == [-1, 5, 1, 3]


def test_the_error_is_less_than_a_step():
    vector = torch.linspace(-1, 1, 5000)
    codec = make_codec("quantise:4:rotate=false")
    error = codec.decode(codec.encode(vector, np.random.default_rng(0)), 5000) - vector
    assert error.abs().max() <= 2 / 15 + 1e-6


def test_rotation_helps_where_one_number_is_large():
    """Suresh et al. 2017, §3: the range after rotation depends on the norm, not on the largest number."""
    vector = torch.from_numpy(np.random.default_rng(0).standard_normal(4096).astype(np.float32))
    vector[7] = 1000

    def error(spec):
        codec = make_codec(spec)
        frame = codec.encode(vector, np.random.default_rng(1))
        return float((codec.decode(frame, 4096) - vector).norm())

    assert error("quantise:4") < 0.4 * error("quantise:4:rotate=false")


@pytest.mark.parametrize(("bits", "bytes_"), [(8, 199210), (4, 99605), (2, 49803), (1, 24902)])
def test_the_overhead_is_small(bits, bytes_):
    assert bytes_ < make_codec(f"quantise:{bits}").max_bytes(199210) < 1.03 * bytes_
