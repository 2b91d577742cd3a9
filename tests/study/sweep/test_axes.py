import pytest

from fedavg import Plan
from fedavg.errors import PlanError
from fedavg.study.sweep.axes import axes_of, grid, make_axis, split_axis
from fedavg.study.sweep.points import points_of


def test_a_range_on_a_logarithmic_scale_has_its_ends_and_equal_ratios():
    assert make_axis("lr", "0.03:0.3:3log").values == (0.03, 0.0949, 0.3)


def test_a_range_of_an_option_that_counts_has_whole_numbers_each_once():
    assert make_axis("E", "1:20:5lin").values == (1, 6, 10, 15, 20)
    assert make_axis("E", "1:2:9lin").values == (1, 2)


def test_a_list_keeps_its_values_and_settings_of_parts():
    assert make_axis("algorithm", "fedavg,fedprox:mu=0.1").values == ("fedavg", "fedprox:mu=0.1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "--grid: got 'lr'; expected OPTION=VALUES"),
        ("lr=", "--grid: got 'lr='"),
        ("lr=0.1,,0.2", "expected values"),
        ("rate=0.1", "--grid: got option 'rate'; expected one of task, data,"),
        ("workers=1,2", "which is not swept: it does not change the result"),
        ("seed=1,2", "which is not swept: use --seeds"),
        ("lr=0.3:0.03:3log", "with LOW below HIGH"),
        ("lr=0:1:3log", "LOW above 0 on a logarithmic scale"),
        ("lr=a:b:3log", "expected numbers, as in lr=0.03:0.3:7log"),
        ("lr=0.1:1:1lin", "two values or more"),
    ],
)
def test_a_mistake_is_told(text, message):
    with pytest.raises(PlanError) as error:
        make_axis(*split_axis(text))
    assert message in str(error.value)


def test_a_grid_is_every_combination_the_last_axis_fastest():
    combined = grid(axes_of({"lr": [0.1, 0.2], "E": [1, 5]}))
    assert [dict(settings) for settings in combined] == [
        {"lr": 0.1, "E": 1}, {"lr": 0.1, "E": 5}, {"lr": 0.2, "E": 1}, {"lr": 0.2, "E": 5},
    ]  # fmt: skip


def test_an_option_twice_is_refused():
    with pytest.raises(PlanError, match="got lr twice"):
        grid([make_axis("lr", "0.1"), make_axis("lr", "0.2")])


def test_every_plan_is_checked_before_anything_runs():
    with pytest.raises(PlanError, match="--grid: E: got '0'; expected"):
        points_of(Plan(), grid([make_axis("E", "1,0")]), seeds=1)
    with pytest.raises(PlanError, match=r"the same plan twice: lr=0.1 and lr=0.10"):
        points_of(Plan(), grid([make_axis("lr", "0.1,0.10")]), seeds=1)


def test_each_point_has_a_plan_for_every_seed_from_the_plans_own_on():
    (point,) = points_of(Plan(seed=7), grid([make_axis("E", "5")]), seeds=3)
    assert [(plan.seed, plan.E) for plan in point.plans] == [(7, 5), (8, 5), (9, 5)]
