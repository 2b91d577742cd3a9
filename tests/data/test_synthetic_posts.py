import numpy as np
import pytest
import torch

import programs
from fedavg.data import load
from fedavg.data.posts import BEGIN, VOCABULARY, WORDS


def test_clients_are_repeatable_and_differ() -> None:
    first, again, other = (load("synthetic-posts", clients=20, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.client(7).y, again.client(7).y)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.sizes.tolist() == [len(first.client(k)) for k in range(20)]
    assert not torch.equal(first.test.y, other.test.y)


def test_a_client_does_not_depend_on_how_many_there_are() -> None:
    few, many = load("synthetic-posts", clients=5), load("synthetic-posts", clients=500)
    assert torch.equal(few.client(3).y, many.client(3).y)


def test_the_form_of_posts() -> None:
    data = load("synthetic-posts", clients=50)
    for examples in (data.client(0), data.test):
        assert examples.x.shape == examples.y.shape == (len(examples), 10)
        assert set(examples.x[:, 0].tolist()) == {BEGIN}
        assert torch.equal(examples.x[:, 1:], examples.y[:, :-1])
        assert examples.y.min() >= WORDS
        assert examples.y.max() < VOCABULARY


def test_words_follow_zipf_and_can_be_predicted() -> None:
    y = load("synthetic-posts", clients=1).test.y.numpy()
    shares = np.sort(np.bincount(y.ravel()))[::-1] / y.size
    assert 0.03 < shares[0] < 0.1
    assert shares[:100].sum() > 0.4
    # Half of the words are their predecessor's favourite successor: the commonest pair beats chance by far.
    before = y[:, :-1][y[:, :-1] == np.bincount(y.ravel()).argmax()]
    after = y[:, 1:][y[:, :-1] == before[0]]
    assert np.bincount(after).max() / len(after) > 0.45


def test_sizes_are_heavy_tailed() -> None:
    sizes = load("synthetic-posts", clients=20_000).sizes
    assert sizes.min() == 2
    assert sizes.max() == 500
    # P(n_k >= 20) = 10^-1.2 = 6.3 %
    assert abs((sizes >= 20).mean() - 0.063) < 0.01


def test_half_a_million_clients_start_at_once_and_stay_small() -> None:
    pytest.importorskip("psutil", reason="psutil is not installed")
    code = """
import psutil, time
from fedavg.data import load
start = time.process_time()
data = load("synthetic-posts", clients=500_000)
for k in range(0, 500_000, 2_500):
    data.client(k)
assert len(data.test) == 10_000
assert time.process_time() - start < 10
assert psutil.Process().memory_info().rss < 1e9
"""
    done = programs.script(code)
    assert done.returncode == 0, done.stderr
