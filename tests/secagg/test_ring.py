"""Fixed point in the ring: precision, saturation that is counted, and sums that cannot overflow."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedavg.errors import Diverged
from fedavg.secagg import Encoding, TermsError
from fedavg.sums import ExactSum


def ring_sum(encoding, encoded):
    return sum((each.ring for each in encoded), np.zeros(encoding.length, encoding.dtype))


def test_numbers_by_hand():
    # L = (2^31 - 1) // 4 = 536870911; clip * cap = 16, so f = 24: 16 * 2^24 = 2^28 < L < 16 * 2^25 = 2^29.
    encoding = Encoding(4, 3, clip=2.0, weight_cap=8, metrics=("loss",))
    assert (encoding.limit, encoding.fraction_bits) == (536870911, 24)
    encoded = encoding.encode(np.array([0.5, -0.25, 3.0], np.float32), 4, {"loss": 1.5})
    assert encoded.ring[:3].tolist() == [2 << 24, (1 << 32) - (1 << 24), 8 << 24]  # the 3.0 became 2.0
    assert (encoded.saturated, encoded.capped) == (1, False)
    decoded = encoding.decode(encoded.ring, 1)
    assert decoded.vector.tolist() == [2.0, -1.0, 8.0]
    assert (decoded.weight, decoded.metrics, decoded.saturated, decoded.capped) == (4, {"loss": 1.5}, 1, 0)


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("clients", [2, 3, 4, 5, 100, 200])
@pytest.mark.parametrize("sign", [1, -1])
def test_everyone_at_the_edge_does_not_overflow(bits, clients, sign):
    encoding = Encoding(clients, 2, clip=0.7, weight_cap=600, bits=bits)
    vector = np.array([0.7 * sign, 100.0 * sign])
    total = encoding.decode(ring_sum(encoding, [encoding.encode(vector, 601)] * clients), clients)
    step = 2.0**-encoding.fraction_bits
    assert np.abs(total.vector - sign * clients * 600 * 0.7).max() <= clients * step / 2
    assert total.weight == 600 * clients
    assert (total.saturated, total.capped) == (clients, clients)
    # and no bit of room is given away: half the clip could not be finer by more than the power of two
    assert 600 * 0.7 * 2.0 ** (encoding.fraction_bits + 1) > encoding.limit * (1 - 2.0**-49)


floats = st.floats(-3, 3, width=32)


@given(st.data(), st.sampled_from([16, 32, 64]), st.integers(2, 12))
def test_the_sum_is_the_plain_sum_within_half_a_step_per_client(data, bits, clients):
    encoding = Encoding(clients, 4, clip=1.5, weight_cap=50, metrics=("loss", "accuracy"), bits=bits)
    vectors = [data.draw(arrays(np.float32, 4, elements=floats)) for _ in range(clients)]
    weights = [data.draw(st.integers(0, 70)) for _ in range(clients)]
    metrics = [{"loss": data.draw(floats), "accuracy": data.draw(floats)} for _ in range(clients)]
    encoded = [encoding.encode(*each) for each in zip(vectors, weights, metrics, strict=True)]
    total = encoding.decode(ring_sum(encoding, encoded), clients)
    used = np.minimum(weights, 50)
    plain = sum(w * np.clip(v.astype(float), -1.5, 1.5) for w, v in zip(used, vectors, strict=True))
    assert np.abs(total.vector - plain).max() <= clients * 2.0**-encoding.fraction_bits / 2 + 1e-9
    assert total.weight == used.sum()
    for name in ("loss", "accuracy"):
        plain_mean = sum(w * m[name] for w, m in zip(used, metrics, strict=True)) / max(used.sum(), 1)
        assert total.metrics[name] == pytest.approx(plain_mean, abs=1e-8)
    assert total.saturated == sum(int((np.abs(v) > 1.5).sum()) for v in vectors)
    assert total.capped == sum(weight > 50 for weight in weights)


def test_in_64_bits_with_32_of_fraction_it_is_the_exact_sum_of_the_plain_path_bit_for_bit():
    encoding = Encoding(2, 1000, clip=2.0**20, weight_cap=2.0**9, bits=64)
    assert encoding.fraction_bits == 32
    plain = ExactSum(ring := torch.zeros(1000, dtype=torch.int64))
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=1000).astype(np.float32) for _ in range(2)]
    for vector in vectors:
        plain.add(torch.from_numpy(vector), 317)
    total = ring_sum(encoding, [encoding.encode(vector, 317) for vector in vectors])
    assert np.array_equal(total[:1000].view(np.int64), ring.numpy())


def test_a_metric_beyond_its_range_is_clipped_and_counted():
    encoding = Encoding(2, 1, clip=1.0, weight_cap=10, metrics=("loss",))
    encoded = encoding.encode(np.zeros(1), 10, {"loss": 1e12})
    assert encoded.saturated == 1
    decoded = encoding.decode(encoded.ring, 1)
    assert (decoded.saturated, decoded.metrics["loss"]) == (1, pytest.approx(2.0**31 / 10))


def test_nobody_with_any_weight_has_no_mean_metric_and_an_empty_vector_is_fine():
    encoding = Encoding(2, 0, clip=1.0, weight_cap=10, metrics=("loss",))
    decoded = encoding.decode(encoding.encode(np.zeros(0), 0, {"loss": 2.0}).ring, 1)
    assert (decoded.weight, decoded.metrics, decoded.vector.shape) == (0, {"loss": 0.0}, (0,))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad):
    encoding = Encoding(2, 2, clip=1.0, weight_cap=10, metrics=("loss",))
    with pytest.raises(Diverged):
        encoding.encode(np.array([0.0, bad]), 1, {"loss": 0.0})
    with pytest.raises(Diverged):
        encoding.encode(np.zeros(2), 1, {"loss": bad})
    with pytest.raises(ValueError, match="weight"):
        encoding.encode(np.zeros(2), bad, {"loss": 0.0})


def test_other_shapes_and_metrics_are_refused():
    encoding = Encoding(2, 2, clip=1.0, weight_cap=10, metrics=("loss",))
    with pytest.raises(ValueError, match="expected"):
        encoding.encode(np.zeros(3), 1, {"loss": 0.0})
    with pytest.raises(ValueError, match="expected"):
        encoding.encode(np.zeros(2), 1, {"accuracy": 0.0})
    with pytest.raises(ValueError, match="weight"):
        encoding.encode(np.zeros(2), -1, {"loss": 0.0})
    ring = encoding.encode(np.zeros(2), 1, {"loss": 0.0}).ring
    for bad in (ring[1:], ring.astype(np.uint64)):
        with pytest.raises(ValueError, match="expected"):
            encoding.decode(bad, 1)


@pytest.mark.parametrize(
    "changes",
    [{"bits": 24}, {"clients": 1}, {"clip": 0.0}, {"clip": float("nan")}, {"clip": float("inf")}, {"weight_cap": -1.0},
     {"dimension": -1}, {"metrics": ("loss", "loss")}, {"bits": 16, "clients": 40000}],
)  # fmt: skip
def test_impossible_encodings_are_refused(changes):
    values = {"clients": 10, "dimension": 3, "clip": 1.0, "weight_cap": 10.0}
    with pytest.raises(TermsError):
        Encoding(**values | changes)
