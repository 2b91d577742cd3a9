"""What every codec must do. Frames come from strangers, so a decoder is tried with damaged ones too."""

import numpy as np
import torch
from torch import Tensor

from fedavg.codecs import Codec
from fedavg.errors import DataError, Diverged
from fedavg.testing.problem import check_same_bits, check_text, require, small_plan


def check_codec(codec: Codec) -> None:
    """Frames can be read back, are no longer than said, and are refused or harmless when they are damaged.

    >>> from fedavg.codecs.topk import TopK
    >>> check_codec(TopK(0.1))
    """
    what = f"codec {codec!r}"
    require(isinstance(codec, Codec), f"{what} is not a fedavg.Codec; derive its class from it")
    require(bool(getattr(codec, "name", "")), f"{what} has no name; give its class one: name = 'mine'")
    check_text(codec, Codec, what)
    for vector in (torch.zeros(0), torch.tensor([-3.5]), torch.zeros(37), torch.full((33,), -0.25), _normal(5000)):
        _check_round_trip(codec, vector, what)
    _check_divergence(codec, what)
    _check_damage(codec, what)
    if codec.keeps_residual:
        vector, bound = _normal(300), _bound(codec, 300)
        left = vector - bound.decode(bound.encode(vector, _rng()), 300)
        require(
            bool(left.norm() < 0.99 * vector.norm()),
            f"{what} keeps what it leaves out, but leaves out all: |v - decode(encode(v))| is "
            f"{float(left.norm() / vector.norm()):.3g} |v|; expected less, or error feedback never catches up",
        )
    check_same_bits(small_plan(codec=codec, rounds=3), what)


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _normal(size: int) -> Tensor:
    return torch.from_numpy(_rng(1).standard_normal(size, np.float32))


def _bound(codec: Codec, size: int) -> Codec:
    """The codec, bound to a vector that is a matrix and a bias."""
    rows = max(size // 6, 1)
    return codec.bind(lambda: [(rows, 5), (size - 5 * rows,)] if size >= 5 else [(size,)])


def _check_round_trip(codec: Codec, vector: Tensor, what: str) -> None:
    size, bound, before = len(vector), _bound(codec, len(vector)), vector.clone()
    frame, again = (bound.encode(vector, _rng(3)) for _ in range(2))
    require(frame == again, f"{what}: the same vector and generator gave two frames; draw only from rng")
    require(torch.equal(vector, before), f"{what}: `pack` changed the values that it was given; work on a copy")
    most = bound.max_bytes(size)
    require(len(frame) <= most, f"{what}: {len(frame)} bytes for {size} numbers; `max_bytes` says at most {most}")
    decoded = bound.decode(frame, size)
    require(
        decoded.shape == (size,) and decoded.dtype == torch.float32,
        f"{what}: a frame of {size} numbers gave {tuple(decoded.shape)} {decoded.dtype}; expected ({size},) float32",
    )
    if bound.lossless:
        same = decoded.numpy().tobytes() == vector.numpy().tobytes() and len(frame) == bound.frame_bytes(size)
        require(same, f"{what} says that it is lossless; expected the same bits back, from `frame_bytes({size})` bytes")
    if not before.any():
        require(not decoded.any(), f"{what}: zeros came back as {decoded[:5].tolist()}; expected zeros")


def _check_divergence(codec: Codec, what: str) -> None:
    for value in (float("nan"), float("inf"), 1e30):
        vector = _normal(100)
        vector[40] = value
        try:
            _bound(codec, 100).encode(vector, _rng())
        except Diverged:
            continue
        require(False, f"{what} encoded a vector with {value}; expected fedavg.errors.Diverged. Do not override encode")


def _check_damage(codec: Codec, what: str) -> None:
    bound = _bound(codec, 30)
    frame = bound.encode(_normal(30), _rng())
    for bad in (frame[:-1], frame + b"\0", b"", frame + frame):
        require(
            _refused(bound, bad, what),
            f"{what}: read a frame of {len(bad)} bytes, where one has {len(frame)}; expected self.check_length(...) or "
            "self.refuse(...) in `unpack`",
        )
    rng = _rng(5)
    for _ in range(200):
        damaged = bytearray(frame)
        for place in rng.integers(0, len(frame), 3):
            damaged[place] ^= int(rng.integers(1, 256))
        _refused(bound, bytes(damaged), what)


def _refused(codec: Codec, frame: bytes, what: str) -> bool:
    """Refused by a DataError, or else read as finite numbers of the right shape; anything else is a mistake."""
    try:
        decoded = codec.decode(frame, 30)
    except DataError:
        return True
    except Exception as error:
        require(False, f"{what}: a damaged frame raised {type(error).__name__} ({error}); expected a DataError")
    require(
        decoded.shape == (30,), f"{what}: a damaged frame gave {tuple(decoded.shape)}; expected (30,) or a DataError"
    )
    return False
