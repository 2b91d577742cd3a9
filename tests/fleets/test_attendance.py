from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg import Round, train
from fedavg.fleets.attendance import MOST_NAMED, Attendance, cosines_to_mean, joined, look_at, see
from fedavg.types import Update
from toys import toy_plan


def cohorts(**options):
    return [event.cohort for event in train(toy_plan(**options)) if isinstance(event, Round)]


def test_norms_and_cosines_by_hand():
    """(3, 4) counting once and (4, -3) counting twice: the mean points along (11, -2)."""
    seen = {5: see(Update(torch.tensor([3.0, 4.0]), 1), 0), 2: see(Update(torch.tensor([4.0, -3.0]), 2), 0)}
    assert Attendance(2, seen).to_dict()["who"] == {
        "client": [2, 5],
        "outcome": ["reported", "reported"],
        "norm": [5.0, 5.0],
        "cosine": [round(50 / (5 * 125**0.5), 3), round(25 / (5 * 125**0.5), 3)],
    }


@given(st.integers(0, 2**32), st.sampled_from([1500, 10_000, 20_480]))
def test_a_sketch_keeps_angles_and_sums(seed, size):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, size)).astype(np.float32)
    b += a
    sketch_a, sketch_b = (look_at(torch.from_numpy(v), 7).folded.astype(float) for v in (a, b))
    cosine = sketch_a @ sketch_b / np.linalg.norm(sketch_a) / np.linalg.norm(sketch_b)
    assert cosine == pytest.approx(2**-0.5, abs=0.2)  # six standard deviations
    assert np.allclose(look_at(torch.from_numpy(a + b), 7).folded, sketch_a + sketch_b, atol=1e-3)


def test_an_update_of_nothing_has_no_direction():
    seen = {0: see(Update(torch.zeros(3), 1), 0), 1: see(Update(torch.ones(3), 1), 0)}
    assert cosines_to_mean(seen) == {1: 1.0}
    assert Attendance(2, seen).to_dict()["who"]["cosine"] == [None, 1.0]


def test_who_is_missing_is_named_with_the_reason():
    seen = {3: see(Update(torch.ones(2), 1), 0)}
    found = Attendance(3, seen, {"late": [1], "refused: not-finite": [7]}).to_dict()
    assert found["missing"] == {"late": 1, "refused: not-finite": 1}
    assert found["who"]["client"] == [1, 3, 7]
    assert found["who"]["outcome"] == ["late", "reported", "refused: not-finite"]
    assert found["who"]["norm"] == [None, 1.414, None]


def test_of_a_huge_cohort_only_counts_are_kept():
    seen = {0: see(Update(torch.ones(2), 1), 0)}
    assert "who" in Attendance(MOST_NAMED, seen).to_dict()
    assert "who" not in Attendance(MOST_NAMED + 1, seen).to_dict()


def test_parts_are_joined_with_what_they_count_for():
    first = Attendance(1, {0: see(Update(torch.tensor([1.0, 0.0]), 1), 0)}, staleness={0: 1})
    late = Attendance(1, {1: see(Update(torch.tensor([0.0, 1.0]), 1), 0)}, staleness={2: 1})
    both = joined([first, None, late], [1.0, 1.0, 0.5])
    assert both.to_dict()["staleness"] == {"0": 1, "2": 1}
    assert both.to_dict()["who"]["cosine"] == [round(2 / 5**0.5, 3), round(1 / 5**0.5, 3)]


def test_the_simulator_records_who_took_part_alike_for_any_number_of_workers():
    one, three = cohorts(C=0.5, workers=1), cohorts(C=0.5, workers=3)
    assert one == three
    assert all(len(cohort["who"]["client"]) == cohort["asked"] == 3 for cohort in one)
    assert all(norm > 0 for cohort in one for norm in cohort["who"]["norm"])


@pytest.mark.parametrize(
    "options",
    [
        {"stages": ["weigh:equal", "clip:1", "noise:1"], "C": 1.0, "sampling": "poisson"},
        {"secagg": "complete:8:100", "C": 1.0},
    ],
)
def test_a_private_plan_names_nobody(options):
    for cohort in cohorts(**options):
        assert "who" not in cohort
        assert cohort["asked"] == 5


def test_secure_aggregation_tells_survivors_and_threshold():
    cohort = cohorts(secagg="complete:8:100", C=1.0)[0]
    assert cohort["survivors"] == 5
    assert 2 <= cohort["threshold"] <= 5


def test_an_asynchronous_run_tells_how_old_the_models_were():
    found = cohorts(algorithm="fedbuff:2", C=1.0, rounds=6)
    assert any("staleness" in cohort for cohort in found)
    assert all(sum(cohort["staleness"].values()) == 2 for cohort in found if "staleness" in cohort)


def test_the_record_is_part_of_a_row_only_where_there_is_one():
    from fedavg.server import event_row

    event = next(event for event in train(toy_plan(rounds=1)) if isinstance(event, Round))
    assert event_row(event)["cohort"] == event.cohort
    assert "cohort" not in event_row(replace(event, cohort=None))
