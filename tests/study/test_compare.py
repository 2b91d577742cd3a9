import json

import numpy as np
import pytest
from click.testing import CliRunner

import fedavg
from fedavg.cli import cli
from fedavg.errors import FedAvgError, RunDirError
from fedavg.study.compare import along, comparison, differing, read_run
from fedavg.study.plot import curve_of, plot_runs
from toys import toy_plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    fedavg.run(toy_plan(rounds=3, lr=0.1), path / "slow")
    fedavg.run(toy_plan(rounds=3, lr=0.5, target=0.5), path / "inside/fast")
    (path / "other").mkdir()
    return path


@pytest.fixture(scope="module")
def both(folder):
    return [read_run(folder / "slow"), read_run(folder / "inside/fast")]


def test_options_that_differ_and_what_came_out(both):
    slow, fast = comparison(both)
    assert (slow["run"], slow["lr"], slow["target"]) == ("slow", 0.1, None)
    assert (fast["lr"], fast["target"]) == (0.5, 0.5)
    assert "E" not in slow
    assert slow["bytes_up"] == sum(row["bytes_up"] for row in both[0].rows)
    assert slow["best accuracy"] == max(row["test"]["accuracy"] for row in both[0].rows)


def test_options_of_the_machine_are_not_compared():
    assert differing([{"workers": 1, "start_method": "fork", "E": 1}, {"workers": 2, "E": 1, "codec": "stc:0.1"}]) == [
        "codec"
    ]


def test_axes_are_sums_up_to_a_round():
    rows = [
        {"round": 1, "bytes_up": 3, "bytes_down": 4, "seconds": 0.5, "eval_seconds": 0.25, "simulated_s": 2.0},
        {"round": 2, "bytes_up": 1, "bytes_down": 2, "seconds": 0.5, "eval_seconds": 0.0, "simulated_s": None},
    ]
    assert [along(rows, axis).tolist() for axis in ("round", "bytes", "time", "simulated")] == [
        [1, 2], [7, 10], [0.75, 1.25], [2.0, 2.0],
    ]  # fmt: skip


def test_a_curve_has_the_rounds_that_know_the_metric(both):
    x, y = curve_of(both[0], "bytes", "accuracy")
    assert np.all(np.diff(x) > 0)
    assert y.tolist() == [row["test"]["accuracy"] for row in both[0].rows]
    with pytest.raises(FedAvgError, match="has no 'f1'; expected one of .*accuracy"):
        curve_of(both[0], "round", "f1")


@pytest.mark.parametrize("axis", ["round", "bytes", "time", "simulated"])
def test_a_picture(both, axis, tmp_path):
    plot_runs(both, tmp_path / "a.png", axis)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_all_runs_below_a_folder_as_a_data_frame(folder):
    found = fedavg.runs(folder)
    assert found["run"].tolist() == ["inside/fast", "slow"]
    assert found.set_index("run").loc["slow", "lr"] == 0.1
    with pytest.raises(RunDirError, match="expected a folder of run directories"):
        fedavg.runs(folder / "nowhere")


def test_a_run_that_can_not_be_read_has_a_row_that_says_why(tmp_path):
    fedavg.run(toy_plan(rounds=1), tmp_path / "a")
    (tmp_path / "a/run.json").write_text("{")
    (row,) = fedavg.runs(tmp_path).to_dict("records")
    assert row["run"] == "a"
    assert "cannot be read" in row["status"]


def test_the_commands(folder, tmp_path):
    paths = [str(folder / "slow"), str(folder / "inside/fast")]
    shown = CliRunner().invoke(cli, ["compare", *paths], catch_exceptions=False)
    assert "slow" in shown.output
    assert "MB" in shown.output
    listed = CliRunner().invoke(cli, ["compare", "--json", *paths], catch_exceptions=False)
    assert [row["lr"] for row in json.loads(listed.output)["runs"]] == [0.1, 0.5]
    drawn = CliRunner().invoke(cli, ["plot", *paths, "--out", str(tmp_path / "a.svg")], catch_exceptions=False)
    assert drawn.exit_code == 0
    assert (tmp_path / "a.svg").exists()
    with pytest.raises(RunDirError, match="is not a run directory"):
        CliRunner().invoke(cli, ["compare", str(tmp_path)], catch_exceptions=False)
