"""Each rule by hand-computed numbers, and the laws that all of them keep."""

import os
import subprocess
import sys
import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedavg import PlanError
from fedavg.robust import PRE_AGGREGATORS, REDUCERS, Case, Rows, TooFew, make_defence
from fedavg.robust.mda import closest
from fedavg.robust.rows import squared_distances

#: Every rule, set for cohorts of 9 with up to 2 faulty clients.
ALL = {
    "median": "median", "trimmed": "trimmed:2", "meamed": "meamed:2", "geomedian": "geomedian", "krum": "krum:2",
    "multikrum": "multikrum:2", "centred": "centred:3:steps=10", "mda": "mda:2", "normbound": "normbound:3",
    "dnc": "dnc:2",
}  # fmt: skip


def rows(*values):
    return Rows.of([np.atleast_1d(np.array(value, np.float32)) for value in values])


def reduced(reducer, *values, pre=()):
    return make_defence(reducer, pre).reduce(rows(*values), np.random.default_rng(0)).tolist()


def test_every_rule_is_tried_here():
    assert {*ALL, "mean"} == set(REDUCERS)


def test_the_mean_counts_every_client_alike():
    assert reduced("mean", [1, 2], [3, 6]) == pytest.approx([2, 4])


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    assert reduced("median", 1, 2, 50, 4) == pytest.approx([3])
    assert reduced("median", 1, 2, 50) == pytest.approx([2])


def test_the_trimmed_mean_leaves_out_the_ends_of_each_coordinate():
    assert reduced("trimmed:1", [1, -100], [2, 1], [6, 2], [100, 3]) == pytest.approx([4, 1.5])


def test_the_share_of_a_trimmed_mean_is_rounded_up():
    assert reduced("trimmed:0.25", 1, 2, 3, 4, 100) == pytest.approx([3])  # 0.25 * 5 = 1.25: two at each end


def test_the_mean_around_the_median_takes_the_nearest_values():
    assert reduced("meamed:2", 0, 1, 2, 3, 50) == pytest.approx([2])  # the median is 2; nearest: 1, 2, 3
    assert reduced("meamed:2", -50, 9, 10, 12, 90) == [pytest.approx(31 / 3)]


def test_the_geometric_median_of_three_clients_on_a_line_is_the_middle_one():
    assert reduced("geomedian", [0, 0], [1, 0], [9, 0]) == pytest.approx([1, 0], abs=1e-3)


def test_krum_gives_the_update_whose_neighbours_are_nearest():
    # n = 5, f = 1: two neighbours count. Scores: 1: 1+4=5, 2: 1+1=2, 3: 1+4=5, 5: 4+9=13, 100: far.
    assert reduced("krum:1", 1, 2, 3, 5, 100) == pytest.approx([2])


def test_multi_krum_gives_the_mean_of_the_best():
    assert reduced("multikrum:1", 1, 2, 3, 5, 100) == pytest.approx([(1 + 2 + 3 + 5) / 4])
    assert reduced("multikrum:1:keep=3", 1, 2, 3, 5, 100) == pytest.approx([2])


def test_centred_clipping_moves_by_at_most_its_radius_over_n_for_each_update():
    assert reduced("centred:1", 3, 0.5) == [pytest.approx((1 + 0.5) / 2)]


def test_centred_clipping_starts_from_what_the_last_round_came_to():
    defence = make_defence("centred:1")
    got = defence.reduce(rows(3, 0.5), np.random.default_rng(0), np.array([2.0]))
    assert got.tolist() == [pytest.approx(2 + (1 - 1) / 2)]


def test_minimum_diameter_averaging_takes_the_subset_that_lies_closest_together():
    assert reduced("mda:1", 0, 10, 11, 12) == pytest.approx([11])


def test_norm_bounding_scales_long_updates_down():
    assert reduced("normbound:5", [3, 4], [6, 8]) == pytest.approx([3, 4])


def test_divide_and_conquer_leaves_out_what_stands_out():
    assert reduced("dnc:1", [1, 0], [1, 0.1], [1, -0.1], [50, 0]) == pytest.approx([1, 0], abs=1e-6)


def test_neighbours_are_mixed_before_the_rule():
    assert reduced("median", 0, 1, 2, 30, pre=["nnm:1"]) == pytest.approx([1])  # means of 3 nearest: 1, 1, 1, 11


def test_buckets_hold_each_update_once():
    assert reduced("mean", 1, 2, 3, 6, pre=["bucket:2"]) == pytest.approx([3])


def test_static_and_adaptive_clipping():
    assert reduced("mean", [3, 4], [30, 40], pre=["clip:5"]) == pytest.approx([3, 4])
    # n = 4, f = 1: floor(2/4 * 3) = 1 of the norms is cut down to the next largest, 3.
    assert reduced("mean", 1, 2, 3, 100, pre=["arc:1"]) == [pytest.approx(9 / 4)]


def test_steps_follow_one_another_as_if_each_made_new_updates():
    """Clipping, then mixing, then the trimmed mean, against the same by hand with whole vectors."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((9, 40)).astype(np.float32)
    x[:2] *= 50
    clipped = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True) / 7, 1)
    distances = ((clipped[:, None] - clipped[None]) ** 2).sum(axis=2)
    mixed = clipped[np.argsort(distances, axis=1)[:, :7]].mean(axis=1)
    expected = np.sort(mixed, axis=0)[2:-2].mean(axis=0)
    got = make_defence("trimmed:2", ["clip:7", "nnm:2"]).reduce(Rows.of(list(x)), rng)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reducer", ALL.values())
def test_equal_updates_are_reduced_to_themselves(reducer):
    got = reduced(reducer, *[[0.5, -1.5, 2.0]] * 9)
    assert got == pytest.approx([0.5, -1.5, 2.0], abs=1e-6)


@pytest.mark.parametrize("reducer", ALL.values())
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_faulty_updates_can_not_lead_a_rule_away(reducer, seed):
    rng = np.random.default_rng(seed)
    x = (1 + 0.1 * rng.standard_normal((9, 20))).astype(np.float32)
    honest = x[2:].mean(axis=0)
    x[:2] = 1e6 * rng.standard_normal(20)
    got = make_defence(reducer).reduce(Rows.of(list(x)), rng)
    assert np.linalg.norm(got - honest) < 4.5  # the honest updates have a norm of about 4.5; the mean would be 1e6 away


#: Several subsets may have the same diameter: of these the first counts, so that the order does matter.
UNORDERED = [text for name, text in ALL.items() if name != "mda"]


@pytest.mark.parametrize("reducer", UNORDERED)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_order_of_clients_does_not_matter(reducer, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((9, 20)).astype(np.float32)
    order = rng.permutation(9)
    one, other = (
        make_defence(reducer).reduce(Rows.of(list(values)), np.random.default_rng(1)) for values in (x, x[order])
    )
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(3, 9), faults=st.integers(0, 4))
def test_the_search_for_the_smallest_diameter_finds_what_trying_all_subsets_finds(seed, n, faults):
    faults = min(faults, n - 2)
    distances = squared_distances((lambda x: x @ x.T)(np.random.default_rng(seed).integers(0, 4, (n, 2)).astype(float)))
    every = combinations(range(n), n - faults)
    best = min(every, key=lambda subset: distances[np.ix_(subset, subset)].max())  # the first of equals
    assert closest(distances, faults).tolist() == list(best)


def test_a_hundred_updates_have_a_smallest_diameter_within_seconds():
    x = np.random.default_rng(0).standard_normal((100, 50)).astype(np.float32)
    x[:20] *= 3
    assert closest(squared_distances(Rows.of(list(x)).gram), 20).tolist() == list(range(20, 100))


@pytest.mark.parametrize(
    ("reducer", "pre", "clients"),
    [
        ("krum:2", [], 6), ("multikrum:0.4", [], 7), ("trimmed:0.45", [], 4), ("meamed:2", [], 4), ("mda:5", [], 10),
        ("dnc:3", [], 6), ("krum:2", ["bucket:2"], 12), ("median", ["nnm:4"], 8), ("median", ["arc:4"], 8),
        ("krum:0.1", [], 2),
    ],
)  # fmt: skip
def test_a_cohort_that_is_too_small_for_the_faults_is_refused(reducer, pre, clients):
    defence = make_defence(reducer, pre)
    with pytest.raises(TooFew, match=f"a cohort of {clients} clients.*expected"):
        defence.check(clients)


@pytest.mark.parametrize(("reducer", "least"), [("krum:2", 7), ("trimmed:2", 5), ("mda:2", 5), ("dnc:2", 5)])
def test_the_smallest_cohort_that_will_do_is_allowed(reducer, least):
    make_defence(reducer).check(least)
    with pytest.raises(TooFew):
        make_defence(reducer).check(least - 1)


def test_more_liars_than_a_rule_can_stand_at_all_are_refused_and_fewer_are_not():
    make_defence("krum:1").check(10, liars=3)  # more than it is set to: a study of what happens then
    with pytest.raises(TooFew, match="attackers: got 4 in a cohort of 10 clients.*stands 3"):
        make_defence("krum:1").check(10, liars=4)


@pytest.mark.parametrize(
    "text", ["trimmed:0.5", "trimmed:-1", "krum:1.5", "geomedian:0", "centred:0", "normbound:-1", "dnc:0.2:rounds=0",
             "multikrum:0.2:keep=0", "trimmd:0.2", "centred"],
)  # fmt: skip
def test_settings_that_can_not_be_are_refused(text):
    with pytest.raises(PlanError, match="expected"):
        make_defence(text)


@pytest.mark.parametrize("text", ["bucket:0", "clip:0", "arc:0.7", "nnm:0.6", "nothing"])
def test_steps_that_can_not_be_are_refused(text):
    with pytest.raises(PlanError, match="expected"):
        make_defence("median", [text])


@pytest.mark.parametrize("text", [*ALL.values(), "mean"])
def test_the_text_of_a_rule_reads_back(text):
    part = make_defence(text).reducer
    assert make_defence(str(part)).reducer == part


def test_the_text_of_a_step_reads_back():
    for text in ("nnm:0.3", "bucket:2", "clip:2.0", "arc:1"):
        part = make_defence("mean", [text]).pre[0]
        assert str(part) == text
        assert text.partition(":")[0] in PRE_AGGREGATORS


def test_rows_are_read_in_tiles_without_a_copy_of_them_all():
    vectors = [np.full(40_000, value, np.float32) for value in range(5)]
    got = Rows.of(vectors)
    assert all(kept is vector for kept, vector in zip(got.basis.vectors, vectors, strict=True))
    places = [place for place, _ in got.tiles()]
    assert len(places) > 1
    assert (places[0].start, places[-1].stop) == (0, 40_000)


def test_inner_products_of_a_wider_basis_are_those_computed_afresh():
    x = np.random.default_rng(0).standard_normal((5, 100)).astype(np.float32)
    known = Rows.of(list(x[:4]))
    _ = known.gram
    np.testing.assert_allclose(known.extended(x[4]).gram, x.astype(float) @ x.T.astype(float), rtol=1e-12)
    mixed = known.mixed(np.array([[0.5, 0.5, 0, 0], [0, 0, 1.0, 0]])).extended(x[4])
    by_hand = np.stack([(x[0] + x[1]) / 2, x[2], x[4]]).astype(float)
    np.testing.assert_allclose(mixed.gram, by_hand @ by_hand.T, rtol=1e-5)


def test_a_rule_draws_only_from_its_own_generator():
    x = np.random.default_rng(0).standard_normal((9, 50)).astype(np.float32)
    for reducer, pre in (("dnc:2:coordinates=5", []), ("median", ["bucket:2"])):
        one, other = (make_defence(reducer, pre).reduce(Rows.of(list(x)), np.random.default_rng(3)) for _ in range(2))
        assert one.tobytes() == other.tobytes()


def test_a_case_has_no_memory_by_default():
    assert Case(1, np.random.default_rng(0)).previous is None


@pytest.mark.parametrize(
    ("reducer", "pre"),
    [(text, ()) for text in ALL.values()] + [("trimmed:2", ("clip:1", "nnm:2")), ("geomedian", ("arc:2", "bucket:2"))],
)
def test_a_rule_takes_little_memory_beside_the_updates(reducer, pre):
    """At most a fifth of what they take: no rule and no step makes a second copy of them."""
    x = list(np.random.default_rng(0).standard_normal((40, 100_000), dtype=np.float32))
    tracemalloc.start()
    make_defence(reducer, pre).reduce(Rows.of(x), np.random.default_rng(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Two vectors of float64 are a tenth of forty of float32; a tile and its copies are some megabytes in all.
    assert peak < 0.2 * sum(vector.nbytes for vector in x) + 8 * 2**20


def test_bits_do_not_depend_on_the_threads_of_numpy():
    """How many cores a machine has must not show in the model."""
    program = (
        "import numpy as np, torch; torch.set_num_threads(1); from fedavg.robust import Rows; "
        "rows = Rows.of(list(np.random.default_rng(0).standard_normal((100, 20_000)).astype(np.float32))); "
        "print(rows.gram.tobytes().hex()[:100_000])"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"OPENBLAS_NUM_THREADS": count},
            capture_output=True, check=True,
        ).stdout
        for count in ("1", "2")
    ]  # fmt: skip
    assert found[0] == found[1]
