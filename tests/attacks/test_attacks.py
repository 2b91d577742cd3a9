"""Each attack by hand-computed numbers, and against ByzFL's."""

import numpy as np
import pytest
import torch

from byzfl_peer import peer
from fedavg import DataError, Examples, PlanError
from fedavg.attacks import ATTACKS, View, make_attack
from fedavg.robust import Rows, make_defence

ALL = ["nan", "inf", "gaussian:2.0", "signflip", "scaled:5.0", "ipm:0.5", "optipm", "alie:1.0", "optalie", "mimic:1",
       "labelflip:3", "backdoor:1:0.25", "freerider:0.1", "minmax:std"]  # fmt: skip


def rng():
    return np.random.default_rng(0)


def honest(*values):
    return Rows.of([np.atleast_1d(np.array(value, np.float32)) for value in values])


def forged(attack, *values, liars=1, reducer="mean", pre=()):
    view = View(honest(*values), liars, make_defence(reducer, pre), rng())
    return make_attack(attack).forge(view).tolist()


def test_every_attack_is_tried_here():
    assert {text.partition(":")[0] for text in ALL} == set(ATTACKS)


@pytest.mark.parametrize("text", ALL)
def test_the_text_of_an_attack_reads_back(text):
    attack = make_attack(text)
    assert make_attack(str(attack)) == attack


@pytest.mark.parametrize("text", ALL)
def test_an_attack_says_what_liars_know_and_its_page_does_too(text):
    attack = make_attack(text)
    assert attack.sees in ("own", "honest")
    assert "know" in type(attack).__doc__ or "see" in type(attack).__doc__


def test_what_is_no_number_is_sent_at_every_place():
    assert make_attack("nan").on_update(torch.ones(3), rng()).isnan().all()
    assert make_attack("inf").on_update(torch.ones(3), rng()).isinf().all()
    assert not make_attack("nan").finite


def test_gaussian_updates_have_the_mean_and_the_spread_they_are_asked_for():
    drawn = make_attack("gaussian:2:mu=5").on_update(torch.zeros(20_000), rng())
    assert float(drawn.mean()) == pytest.approx(5, abs=0.1)
    assert float(drawn.std()) == pytest.approx(2, abs=0.1)


def test_a_flipped_and_a_scaled_update():
    assert make_attack("signflip").on_update(torch.tensor([1.0, -2.0]), rng()).tolist() == [-1, 2]
    assert make_attack("scaled:3").on_update(torch.tensor([1.0, -2.0]), rng()).tolist() == [3, -6]


def test_a_free_rider_sends_no_change_or_only_noise():
    assert make_attack("freerider").on_update(torch.ones(4), rng()).tolist() == [0, 0, 0, 0]
    noise = make_attack("freerider:0.1").on_update(torch.ones(20_000), rng())
    assert float(noise.std()) == pytest.approx(0.1, rel=0.05)


def test_inner_product_manipulation_turns_the_honest_mean_round():
    assert forged("ipm:2", [1, 2], [3, 4]) == [-4, -6]


def test_a_little_is_enough_moves_the_mean_by_the_spread():
    assert forged("alie:2", [1.0, 0], [3.0, 0]) == pytest.approx([2 + 2 * 2**0.5, 0])


def test_mimics_send_what_one_honest_client_sends():
    assert forged("mimic:1", [1, 2], [3, 4]) == [3, 4]


def test_min_max_goes_as_far_as_it_can_without_standing_out():
    # Honest 1 and 3 (and a wide 2): mean 2, largest distance 2. Down from 2, the point 1 is 2 away from 3.
    assert forged("minmax", 1, 2, 3) == pytest.approx([1])
    x = np.random.default_rng(3).standard_normal((6, 30))
    for direction in ("unit", "std", "sign"):
        lie = np.array(forged(f"minmax:{direction}", *x))
        farthest = max(np.linalg.norm(a - b) for a in x for b in x)
        assert max(np.linalg.norm(lie - a) for a in x) == pytest.approx(farthest, rel=1e-5)


def test_the_search_finds_the_factor_that_harms_the_most():
    """With a lie below 1 the median of 0, 1, 2, 3 and it is 1, as far from 1.5 as it can get."""
    (lie,) = forged("optipm", 0, 1, 2, 3, reducer="median")
    assert lie <= 1
    # A mean can be led as far as the search goes: by 20 doubling steps of 10.
    (far,) = forged("optipm:evals=3", 2, 2)
    assert far == -2 * (10 + 20)


@pytest.mark.parametrize("reducer", ["trimmed:2", "geomedian:0.1:3", "multikrum:2"])
@pytest.mark.parametrize("name", ["optipm", "optalie"])
def test_the_optimal_factors_are_those_of_byzfl(name, reducer):
    theirs, agg = peer("attacks.attacks"), peer("aggregators.aggregators")
    pre = peer("aggregators.preaggregators")
    x = (1 + np.random.default_rng(2).standard_normal((10, 200))).astype(np.float32)
    rule = {
        "trimmed:2": lambda: agg.TrMean(2), "geomedian:0.1:3": lambda: agg.GeometricMedian(0.1, 3),
        "multikrum:2": lambda: agg.MultiKrum(3),
    }[reducer]()  # fmt: skip
    ours = "multikrum:2:keep=9" if reducer == "multikrum:2" else reducer
    kind = {"optipm": "Optimal_InnerProductManipulation", "optalie": "Optimal_ALittleIsEnough"}[name]
    attack = getattr(theirs, kind)(rule, [pre.Clipping(20.0), pre.NNM(2)], f=2)
    expected = attack(x.astype(np.float64))
    got = forged(name, *x, liars=2, reducer=ours, pre=["clip:20", "nnm:2"])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "make"),
    [("ipm:1", lambda a: a.SignFlipping()), ("ipm:0.7", lambda a: a.InnerProductManipulation(0.7)),
     ("alie:1.5", lambda a: a.ALittleIsEnough(1.5)), ("mimic:2", lambda a: a.Mimic(2))],
)  # fmt: skip
def test_lies_have_the_values_of_byzfl(name, make):
    x = np.random.default_rng(2).standard_normal((10, 200)).astype(np.float32)
    expected = make(peer("attacks.attacks"))(x.astype(np.float64))
    np.testing.assert_allclose(forged(name, *x), expected, rtol=1e-5, atol=1e-6)


def test_an_own_flip_is_that_of_byzfl_for_a_single_client():
    x = np.random.default_rng(2).standard_normal((1, 20)).astype(np.float32)
    expected = peer("attacks.attacks").SignFlipping()(x.astype(np.float64))
    np.testing.assert_allclose(make_attack("signflip").on_update(torch.from_numpy(x[0]), rng()), expected, rtol=1e-6)


def test_infinite_and_random_updates_have_the_form_of_byzfl():
    x = np.random.default_rng(2).standard_normal((3, 20)).astype(np.float32)
    theirs = peer("attacks.attacks")
    assert np.array_equal(make_attack("inf").on_update(torch.from_numpy(x[0]), rng()), theirs.Inf()(x))
    np.random.seed(1)
    drawn = theirs.Gaussian(5.0, 2.0)(np.zeros((2, 50_000)))
    ours = make_attack("gaussian:2:mu=5").on_update(torch.zeros(50_000), rng()).numpy()
    assert (ours.mean(), ours.std()) == pytest.approx((drawn.mean(), drawn.std()), rel=0.02)


def test_labels_are_turned_round_as_byzfl_does():
    y = torch.tensor([0, 3, 9])
    flipped = make_attack("labelflip").on_examples(Examples(torch.zeros(3, 2), y), rng())
    assert flipped.y.tolist() == y.sub(10 - 1).mul(-1).tolist() == [9, 6, 0]


def test_more_labels_than_classes_are_refused():
    with pytest.raises(DataError, match="labels from 0 to 9; expected 0 to 2.*labelflip:10"):
        make_attack("labelflip:3").on_examples(Examples(torch.zeros(2, 2), torch.tensor([0, 9])), rng())
    with pytest.raises(DataError, match="expected whole numbers"):
        make_attack("labelflip").on_examples(Examples(torch.zeros(2, 2), torch.zeros(2)), rng())


def test_a_backdoor_stamps_its_share_of_examples_and_calls_them_the_target():
    x, y = torch.zeros(8, 6, 6, dtype=torch.uint8), torch.arange(8) % 4
    poisoned = make_attack("backdoor:3:0.25:size=2").on_examples(Examples(x, y), rng())
    stamped = poisoned.x.flatten(1).any(dim=1).bool()
    assert int(stamped.sum()) == 2
    assert (poisoned.y[stamped] == 3).all()
    assert (poisoned.y[~stamped] == y[~stamped]).all()
    assert poisoned.x[stamped][0].nonzero().tolist() == [[4, 4], [4, 5], [5, 4], [5, 5]]
    assert not x.any()  # the client's own examples are as they were


def test_the_success_of_a_backdoor_is_judged_on_the_other_classes():
    test = make_attack("backdoor:3").triggered(Examples(torch.zeros(8, 5), torch.arange(8) % 4))
    assert len(test) == 6
    assert test.y.tolist() == [3] * 6
    assert test.x[0].tolist() == [0, 0, 1, 1, 1]


def test_a_boosted_backdoor_enlarges_the_update():
    assert make_attack("backdoor:boost=4").on_update(torch.ones(2), rng()).tolist() == [4, 4]


@pytest.mark.parametrize(
    "text", ["signflip:0", "scaled:-1", "gaussian:-1", "freerider:-1", "labelflip:1", "backdoor:0:0", "mimic:-1",
             "minmax:up", "optipm:0", "ipm:inf", "lie"],
)  # fmt: skip
def test_settings_that_can_not_be_are_refused(text):
    with pytest.raises(PlanError, match="expected"):
        make_attack(text)
