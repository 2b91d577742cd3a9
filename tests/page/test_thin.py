import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedavg.page.compare import along, bands, curves, group_of
from fedavg.page.record import RunFiles
from fedavg.page.thin import Curve, band, curve, thinned
from fedavg.study.compare import differing
from page.runs import finished

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400)


@given(values, st.integers(4, 50))
def test_a_thinned_curve_keeps_its_ends_and_its_extremes(ys, points):
    full = Curve(np.arange(len(ys), dtype=float), np.array(ys))
    thin = thinned(full, points)
    assert len(thin.x) <= points or len(thin.x) == len(ys)
    assert (np.diff(thin.x) > 0).all()
    assert np.isin(thin.x, full.x).all()
    assert (thin.y == full.y[thin.x.astype(int)]).all()
    assert (thin.x[0], thin.x[-1]) == (full.x[0], full.x[-1])
    assert (thin.y.min(), thin.y.max()) == (full.y.min(), full.y.max())


def test_points_that_are_not_known_are_left_out():
    found = curve(np.array([1.0, 2, 3]), np.array([0.5, np.nan, 0.7]))
    assert found.x.tolist() == [1, 3]


def test_a_band_is_taken_where_all_curves_are_known():
    one = Curve(np.array([1.0, 3.0]), np.array([0.0, 2.0]))
    other = Curve(np.array([2.0, 3.0, 4.0]), np.array([3.0, 4.0, 9.0]))
    found = band([one, other])
    assert found.x.tolist() == [2, 3]
    assert found.low.tolist() == [1, 2]
    assert found.high.tolist() == [3, 4]
    assert found.mean.tolist() == [2, 3]


def test_curves_without_a_common_stretch_have_no_band():
    assert band([Curve(np.array([1.0]), np.array([1.0])), Curve(np.array([2.0]), np.array([1.0]))]) is None


def record(run):
    found = RunFiles(run.path, run.path.name)
    found.refresh()
    return found


def test_axes_are_sums_up_to_a_round(tmp_path):
    run = record(finished(tmp_path / "a", rounds=2))
    assert along(run, "round").tolist() == [1, 2]
    assert along(run, "bytes").tolist() == [3e6, 6e6]
    assert along(run, "time").tolist() == [1, 2]
    assert along(run, "simulated").tolist() == [0.5, 1]


def test_runs_that_differ_in_their_seeds_alone_have_a_band(tmp_path):
    runs = [record(finished(tmp_path / f"{seed}", rounds=4, seed=seed)) for seed in (0, 1)]
    other = record(finished(tmp_path / "other", rounds=4, lr=0.3, workers=1))
    (found,) = bands([*runs, other], "round", "test.accuracy")
    assert found["runs"] == [run.id for run in runs]
    assert found["mean"] == [0.5, 0.666667, 0.75, 0.8]
    assert len(curves([*runs, other], "round", "test.accuracy")) == 3
    assert curves(runs, "round", "test.nothing") == []


def test_plans_differ_by_options_that_decide_the_result():
    plans = [{"lr": 0.1, "seed": 0, "workers": 1}, {"lr": 0.2, "seed": 0, "workers": 2}]
    assert differing(plans) == ["lr"]
    assert group_of(plans[0]) != group_of(plans[1])
    assert group_of(plans[0]) == group_of({**plans[0], "seed": 3, "workers": 9})


def test_ten_thousand_rounds_become_a_few_hundred_points(tmp_path):
    full = Curve(np.arange(10_000.0), np.sin(np.arange(10_000.0)))
    assert len(thinned(full).x) <= 600
