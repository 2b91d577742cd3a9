from math import inf

import pytest

from fedavg.errors import PlanError
from fedavg.study.sweep.axes import make_axis
from fedavg.study.sweep.search import BATCH, at_random, by_optuna, parse_drawing

AXES = [make_axis("lr", "0.01:1:3log"), make_axis("E", "1,5")]


def test_points_at_random_are_distinct_repeatable_and_within_the_ranges():
    drawn = at_random(AXES, 20, seed=3)
    assert len(set(drawn)) == 20
    assert drawn == at_random(AXES, 20, seed=3) != at_random(AXES, 20, seed=4)
    assert all(0.01 <= dict(settings)["lr"] <= 1 and dict(settings)["E"] in ("1", "5") for settings in drawn)


def test_a_finite_set_gives_no_more_than_it_has():
    assert len(at_random([make_axis("E", "1,5")], 20, seed=0)) == 2


@pytest.mark.parametrize("text", ["random", "random:0", "grid:3", "optuna:x"])
def test_a_mistake_is_told(text):
    with pytest.raises(PlanError, match="expected random:COUNT or optuna:COUNT"):
        parse_drawing(text)


def test_optuna_is_asked_batch_by_batch_and_asked_again_proposes_the_same():
    known = {}

    def score(settings):
        return known.get(settings)

    first = by_optuna(AXES, 12, seed=1, score=score)
    assert len(first) <= BATCH
    assert first == by_optuna(AXES, 12, seed=1, score=score)
    known |= {settings: -abs(dict(settings)["lr"] - 0.3) for settings in first}
    known[first[0]] = -inf  # diverged
    second = by_optuna(AXES, 12, seed=1, score=score)
    assert second[: len(first)] == first
    assert len(second) > len(first)


def test_optuna_comes_close_to_the_best_rate():
    def score(settings):
        return -abs(dict(settings)["lr"] - 0.3)

    drawn = by_optuna([AXES[0]], 30, seed=1, score=score)
    assert min(abs(dict(settings)["lr"] - 0.3) for settings in drawn) < 0.05
