import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.data.partition import (
    IID,
    Dirichlet,
    Labels,
    Natural,
    Shards,
    dirichlet,
    iid,
    natural,
    parse_partition,
    shards,
    unbalanced,
)
from fedavg.errors import PlanError
from fedavg.seeds import NONE, rng

MNIST_LIKE = np.repeat(np.arange(10), 6000)


def draw(seed: int = 0) -> np.random.Generator:
    return rng(seed, NONE, NONE, "partition")


specs = st.sampled_from(["iid", "shards:1", "shards:2", "dirichlet:0.01", "dirichlet:1", "dirichlet:1000",
                         "unbalanced:0", "unbalanced:1.5", "unbalanced:5"])  # fmt: skip


@given(specs, st.lists(st.integers(0, 4), min_size=12, max_size=60), st.integers(1, 6), st.integers(0, 2**31))
def test_every_example_is_dealt_exactly_once_and_everyone_has_some(
    spec: str, labels: list[int], clients: int, seed: int
) -> None:
    parts = parse_partition(spec).deal(np.array(labels), clients, draw(seed))
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(len(part) for part in parts) >= 1


@given(specs, st.integers(0, 1000))
def test_the_seed_decides(spec: str, seed: int) -> None:
    labels = np.arange(40) % 4
    first, second = (parse_partition(spec).deal(labels, 5, draw(seed)) for _ in range(2))
    assert [part.tolist() for part in first] == [part.tolist() for part in second]


@given(st.sampled_from([iid, lambda y, k, r: dirichlet(y, k, r, 0.1)]), st.integers(1, 30))
def test_sizes_differ_by_at_most_one(split: object, clients: int) -> None:
    sizes = [len(part) for part in split(np.arange(100) % 7, clients, draw())]  # type: ignore[operator]
    assert max(sizes) - min(sizes) <= 1


def test_iid_of_the_paper() -> None:
    parts = iid(MNIST_LIKE, 100, draw())
    assert {len(part) for part in parts} == {600}
    assert min(len(np.unique(MNIST_LIKE[part])) for part in parts) == 10


def test_shards_of_the_paper() -> None:
    parts = shards(MNIST_LIKE, 100, draw())
    assert {len(part) for part in parts} == {600}
    # 6000 is a multiple of the shard of 300, so here a shard has one label and a client one or two.
    assert {len(np.unique(MNIST_LIKE[part])) for part in parts} == {1, 2}
    for part in parts:
        for shard in (part[:300], part[300:]):
            assert len(np.unique(MNIST_LIKE[shard])) == 1


def test_shards_by_hand() -> None:
    labels = np.array([1, 0, 1, 0])
    # Sorted by label, ties in order: rows 1, 3 | 0, 2. One shard each, dealt in either order.
    assert sorted(part.tolist() for part in shards(labels, 2, draw(), 1)) == [[0, 2], [1, 3]]


def test_small_alpha_gives_few_labels_and_large_alpha_all() -> None:
    few, many = (dirichlet(MNIST_LIKE, 100, draw(), alpha) for alpha in (0.05, 100.0))

    def largest_share(part: np.ndarray) -> float:
        return float(np.bincount(MNIST_LIKE[part]).max() / len(part))

    assert np.median([largest_share(part) for part in few]) > 0.7
    assert np.median([largest_share(part) for part in many]) < 0.2


def test_unbalanced_sizes_by_hand() -> None:
    # Three clients, 14 examples: one each, and 11 by the weights 1, 1/2, 1/3, that is 6, 3 and 2.
    sizes = sorted(len(part) for part in unbalanced(np.zeros(14), 3, draw(), 1.0))
    assert sizes == [3, 4, 7]


def test_natural_keeps_order_within_a_key() -> None:
    parts = natural(np.array(["b", "a", "b", "c", "a"]))
    assert [part.tolist() for part in parts] == [[1, 4], [0, 2], [3]]


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [("iid", "iid"), ("shards", "shards"), ("shards:2", "shards"), ("shards:3", "shards:3"),
     (" dirichlet:0.50 ", "dirichlet:0.5"),
     ("unbalanced:1.5", "unbalanced:1.5"), ("natural", "natural"),
     ("dirichlet:0.12345678901", "dirichlet:0.12345678901")],
)  # fmt: skip
def test_specs_are_read_and_written_back(spec: str, canonical: str) -> None:
    assert str(parse_partition(spec)) == canonical
    assert parse_partition(canonical) == parse_partition(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "",
            r"partition: got ''; expected one of iid, .*dirichlet:ALPHA:\[by=client\|label\]:\[capped=False\], .*'mod",
        ),
        ("by-moon", "partition: got 'by-moon'; expected one of iid"),
        ("iid:3", "got 'iid:3'; expected 'iid'"),
        ("shards:1.5", r"expected 'shards:\[per_client=2\]'"),
        ("shards:0", "got 0 shards for each client; expected 1 or more"),
        ("dirichlet", r"got 'dirichlet'; expected 'dirichlet:ALPHA:\[by=client\|label\]:\[capped=False\]'"),
        ("dirichlet:0", "alpha is 0; expected a number above 0"),
        ("dirichlet:nan", "alpha is nan; expected a number above 0"),
        ("dirichlet:x", r"expected 'dirichlet:ALPHA:\[by=client\|label\]:\[capped=False\]'"),
        ("dirichlet:1:by=age", r"expected 'dirichlet:ALPHA:\[by=client\|label\]:\[capped=False\]'"),
        ("labels:0", "got 0 for each client; expected 1 or more"),
        ("unbalanced:-1", "the exponent is -1; expected a number from 0"),
        ("unbalanced:inf", "the exponent is inf; expected a number from 0"),
        ("shards:inf", r"expected 'shards:\[per_client=2\]'"),
    ],
)
def test_bad_specs_are_refused(spec: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse_partition(spec)


def test_more_parts_than_examples_is_refused() -> None:
    with pytest.raises(PlanError, match="needs at least 8 examples, one for each part, and there are 7"):
        Shards(2).deal(np.zeros(7), 4, draw())
    with pytest.raises(PlanError, match="over 0 clients: expected 1 or more"):
        IID().deal(np.zeros(7), 0, draw())


def test_natural_without_keys_is_refused() -> None:
    with pytest.raises(PlanError, match="needs a key per example"):
        Natural().deal(np.zeros(7), 2, draw())


def test_labels_are_split_over_clients_by_a_dirichlet_of_their_own():
    parts = Dirichlet(0.5, by="label").deal(MNIST_LIKE, 10, draw())
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(MNIST_LIKE)))
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 10
    assert max(sizes) > 2 * min(sizes)  # unlike the other form, sizes differ too
    even = Dirichlet(10_000.0, by="label").deal(MNIST_LIKE, 10, draw())
    assert max(map(len, even)) < 1.2 * min(map(len, even))


def test_a_dirichlet_that_leaves_somebody_without_examples_is_given_up_with_a_reason():
    with pytest.raises(PlanError, match="fewer than 10 examples; expected a larger alpha"):
        Dirichlet(0.001, by="label").deal(np.repeat(np.arange(2), 50), 10, draw())


def test_each_client_has_as_many_labels_as_asked_for_and_each_example_one_client():
    parts = Labels(2).deal(MNIST_LIKE, 10, draw())
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(MNIST_LIKE)))
    held = [set(MNIST_LIKE[part].tolist()) for part in parts]
    assert all(len(labels) == 2 for labels in held)
    assert all(k in labels for k, labels in enumerate(held))
    for label in range(10):
        shares = [int((MNIST_LIKE[part] == label).sum()) for part in parts if (MNIST_LIKE[part] == label).any()]
        assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(("labels", "clients", "message"), [(11, 20, "there are 10 labels"), (2, 9, "10 clients or")])
def test_labels_that_can_not_be_shared_out_are_refused(labels, clients, message):
    with pytest.raises(PlanError, match=message):
        Labels(labels).deal(MNIST_LIKE, clients, draw())


def test_with_a_cap_nobody_who_has_a_fair_share_gets_more_of_the_labels_that_are_left():
    """A client ends with at most N/K and what one more label gave it; without a cap sizes differ by more."""
    parts = parse_partition("dirichlet:0.5:by=label:capped=true").deal(MNIST_LIKE, 10, draw())
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(MNIST_LIKE)))
    for part in parts:
        last = MNIST_LIKE[part].max()
        assert np.count_nonzero(MNIST_LIKE[part] < last) < 6000
    free = parse_partition("dirichlet:0.5:by=label").deal(MNIST_LIKE, 10, draw())
    assert np.std([len(part) for part in parts]) < np.std([len(part) for part in free])


def test_by_client_there_is_nothing_to_cap():
    with pytest.raises(PlanError, match="capped is for by=label"):
        Dirichlet(0.5, capped=True)
