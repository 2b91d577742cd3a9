"""An option that would have no effect is refused before round 1, with what to do instead."""

import pytest

import fedavg
from fedavg.errors import PlanError
from test_evaluation import without_test
from toys import toy_data, toy_plan


def refusal(**changes):
    with pytest.raises(PlanError) as caught:
        next(fedavg.train(toy_plan(**changes)))
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"C": 0.5}, "C: got 0.5 with algorithm 'sgd', which has all data in the hands of one client; leave it out"),
        ({"C": 0, "sampling": "turns"}, "sampling: got 'turns' with algorithm 'sgd'.*; expected 'fixed'"),
        ({"C": 0, "reducer": "median"}, "reducer: got 'median' with algorithm 'sgd'.*; expected 'none'"),
    ],
)
def test_a_baseline_with_one_client_chooses_among_none(changes, told):
    with pytest.raises(PlanError, match=told):
        next(fedavg.train(toy_plan(algorithm="sgd", E=1, **changes)))


def test_a_baseline_with_one_client_may_say_so():
    *_, last = fedavg.train(toy_plan(algorithm="sgd", E=1, C=0, rounds=1))
    assert last.clients == 1


@pytest.mark.parametrize("changes", [{}, {"algorithm": "fedsgd", "E": 1}])
def test_all_data_in_one_batch_has_no_last_one_to_drop(changes):
    assert refusal(B="inf", drop_last=True, **changes).startswith("drop_last: got true with B=inf")


def test_a_short_last_batch_can_be_dropped_in_rounds_that_have_one():
    assert next(fedavg.train(toy_plan(B="4,3:inf", drop_last=True))).round == 0


@pytest.mark.parametrize(("option", "value"), [("eval_every", 3), ("metrics", ("f1:3",))])
def test_what_is_about_evaluation_needs_somebody_who_evaluates(option, value):
    """Nobody does, though the plan does not say so: there is neither a test set nor a holdout."""
    told = refusal(data=without_test(toy_data()), **{option: value})
    assert told.startswith(f"{option}: got")
    assert "but nothing is evaluated; leave it out, or evaluate" in told


def test_a_folder_of_data_sets_is_not_for_data_of_ones_own(tmp_path):
    assert refusal(data_dir=str(tmp_path)) == (
        f"data_dir: got '{tmp_path}', where named data sets are kept, and data is an object of your own; leave it out"
    )
