"""Which runs of a sweep are still wanted, from records made by hand."""

import pytest

from fedavg import Plan
from fedavg.campaign.records import ABANDONED, CAP, DIVERGED, TARGET, Record, Records
from fedavg.metrics.goal import Goal
from fedavg.study.sweep.axes import axes_of, grid
from fedavg.study.sweep.points import points_of
from fedavg.study.sweep.race import RaceRules, given_up, groups, needs
from fedavg.study.sweep.tally import DONE, DROPPED, NOT_DONE, Span, ranked, tally

ACCURACY = RaceRules(Goal("accuracy", higher_is_better=True))
#: 24 rounds: the stages end with 4 (which judges nobody), 8, 16 and 24.
POINTS = points_of(Plan(rounds=24), grid(axes_of({"lr": [0.1, 0.2]})), seeds=2)
SLOW, FAST = POINTS


@pytest.fixture
def store(tmp_path):
    return Records(tmp_path)


def put(store, plan, values, stopped=ABANDONED, reason="", metric="accuracy"):
    store.put(
        Record(
            plan=plan, rounds=tuple(range(1, len(values) + 1)), values=tuple(values), metric=metric,
            train_loss=tuple(1.0 for _ in values), sample_rounds=(), sample_loss=(), rounds_run=len(values),
            stopped=stopped, reason=reason, seconds=1.0, date="2026-01-02", command="", engine="graph", versions={},
        )
    )  # fmt: skip


def rising(rounds, slope):
    return [slope * round for round in range(1, rounds + 1)]


def wanted(store, rules=ACCURACY, points=POINTS):
    return [
        (need.plan.eta, need.plan.seed, need.cap) for group in groups(points) for need in needs(group, store, rules)
    ]


def test_a_race_begins_with_a_third_of_the_rounds_on_the_first_seed(store):
    assert wanted(store) == [(0.1, 0, 8), (0.2, 0, 8)]


def test_with_keep_all_every_point_runs_to_its_end_then_the_other_seeds(store):
    rules = RaceRules(ACCURACY.goal, keep_all=True)
    assert wanted(store, rules) == [(0.1, 0, 24), (0.2, 0, 24)]
    put(store, SLOW.plans[0], rising(24, 0.01), CAP)
    put(store, FAST.plans[0], rising(24, 0.04), CAP)
    assert wanted(store, rules) == [(0.1, 1, 24), (0.2, 1, 24)]


def test_one_that_needs_1_6_times_the_rounds_to_come_as_far_is_given_up(store):
    """0.1 is at 0.20 after 8 rounds; 0.2 was there after 5: 8 / 5 = 1.6."""
    put(store, SLOW.plans[0], rising(8, 0.025))
    put(store, FAST.plans[0], rising(8, 0.04))
    assert wanted(store) == [(0.2, 0, 16)]
    (out,) = given_up(POINTS, store, ACCURACY).values()
    assert (out.round, out.reason) == (8, "1.6 x the rounds of lr 0.2 to reach the same value")


def test_one_that_trails_less_stays_in_the_race(store):
    put(store, SLOW.plans[0], rising(8, 0.03))
    put(store, FAST.plans[0], rising(8, 0.04))
    assert wanted(store) == [(0.1, 0, 16), (0.2, 0, 16)]


def test_what_was_decided_at_a_stage_does_not_change_by_what_came_later(store):
    put(store, SLOW.plans[0], rising(8, 0.025) + [0.99] * 16, CAP)
    put(store, FAST.plans[0], rising(24, 0.04), CAP)
    assert set(given_up(POINTS, store, ACCURACY)) == {SLOW.name}


def test_one_that_diverged_is_out_and_nobody_waits_for_it(store):
    put(store, SLOW.plans[0], [0.1, 0.1], DIVERGED, "diverged in round 3")
    put(store, FAST.plans[0], rising(24, 0.04), CAP)
    assert wanted(store) == [(0.2, 1, 24)]


def test_with_a_target_the_others_run_only_as_long_as_the_first_that_reached_it(store):
    rules = RaceRules(Goal("accuracy", higher_is_better=True, target=0.38))
    put(store, SLOW.plans[0], rising(8, 0.03))
    put(store, FAST.plans[0], rising(10, 0.04), TARGET)
    assert wanted(store, rules) == [(0.1, 0, 10)]
    put(store, SLOW.plans[0], rising(10, 0.03))
    assert wanted(store, rules) == [(0.2, 1, 24)]
    slow, fast = tally(POINTS, store, rules)
    assert (slow.status, slow.reason) == (DROPPED, "after round 10: lr 0.2 reached the target by then")
    assert fast.status == NOT_DONE


def test_where_lower_is_better_the_race_is_turned_round(store):
    rules = RaceRules(Goal("loss", higher_is_better=False))
    put(store, SLOW.plans[0], [2 - value for value in rising(8, 0.025)], metric="loss")
    put(store, FAST.plans[0], [2 - value for value in rising(8, 0.04)], metric="loss")
    assert wanted(store, rules) == [(0.2, 0, 16)]


def test_points_race_only_those_that_differ_in_their_rate_alone(store):
    points = points_of(Plan(rounds=24), grid(axes_of({"lr": [0.1, 0.2], "E": [1, 5]})), seeds=1)
    assert [[point.name for point in group] for group in groups(points)] == [
        ["lr=0.1 E=1", "lr=0.2 E=1"],
        ["lr=0.1 E=5", "lr=0.2 E=5"],
    ]
    single = points_of(Plan(rounds=24), grid(axes_of({"E": [1, 5]})), seeds=1)
    assert [need.cap for group in groups(single) for need in needs(group, store, ACCURACY)] == [24, 24]


def test_an_entry_is_the_mean_and_the_range_over_seeds(store):
    rules = RaceRules(Goal("accuracy", higher_is_better=True, target=0.5), keep_all=True)
    put(store, FAST.plans[0], [0.4, 0.6], TARGET)
    put(store, FAST.plans[1], [0.2, 0.3, 0.7], TARGET)
    put(store, SLOW.plans[0], [0.1, 0.3, 0.2], CAP)
    put(store, SLOW.plans[1], [0.1, 0.5, 0.4], CAP)
    best, second = ranked(tally(POINTS, store, rules), rules)
    assert (best.settings, best.status, best.seeds) == ({"lr": 0.2}, DONE, 2)
    assert best.best == Span(pytest.approx(0.65), 0.6, 0.7)
    assert best.rounds_to_target == Span(pytest.approx(2.0), pytest.approx(1.5), pytest.approx(2.5))
    assert second.rounds_to_target is None  # one seed did not reach it
    assert second.best == Span(pytest.approx(0.4), 0.3, 0.5)
    assert second.final == Span(pytest.approx(0.3), 0.2, 0.4)
