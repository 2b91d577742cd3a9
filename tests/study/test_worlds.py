"""Studies of worlds, by their command."""

import json

import pytest
from click.testing import CliRunner

from fedavg.cli import cli
from fedavg.errors import RunDirError
from fedavg.plan import Plan
from fedavg.setup import simulation
from fedavg.study import worlds


def study(name, tmp_path, *options):
    where = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    return CliRunner().invoke(cli, ["study", "world", name, *where, *options], catch_exceptions=False)


def recorded(name, tmp_path):
    return json.loads((tmp_path / "out" / f"world_{name}.json").read_text())


def test_a_study_is_run_drawn_and_gone_on_with(tmp_path):
    done = study("closing", tmp_path, "--rounds", "1")
    assert done.exit_code == 0, done.output
    record = recorded("closing", tmp_path)
    assert list(record["cases"]) == ["all", "deadline 60 s", "deadline 120 s", "quorum 0.7", "first 20 of 26"]
    for case in record["cases"].values():
        assert case["rounds"] == [1]
        assert len(case["groups"]) == 2
        assert case["hours"][0] > 0
    times = {name: case["hours"][0] for name, case in record["cases"].items()}
    assert times["deadline 60 s"] <= times["deadline 120 s"] <= times["all"]
    assert times["quorum 0.7"] <= times["all"]
    assert (tmp_path / "out" / "figures" / "world_closing.png").stat().st_size > 10_000
    again = study("closing", tmp_path, "--rounds", "1")
    assert again.stdout == done.stdout
    assert recorded("closing", tmp_path) == record


@pytest.mark.slow
@pytest.mark.parametrize("name", ["daynight", "async"])
def test_every_study_comes_to_its_end(name, tmp_path):
    done = study(name, tmp_path, "--rounds", "2")
    assert done.exit_code == 0, done.output
    assert all(case["rounds"][-1] == 2 for case in recorded(name, tmp_path)["cases"].values())


@pytest.mark.parametrize("name", sorted(worlds.STUDIES.keys() - {"closing"}))  # which is run above
def test_every_plan_of_a_study_can_be_begun(name, tmp_path):
    for plan in worlds.STUDIES[name](tmp_path).cases.values():
        setup, _ = simulation(plan)
        assert setup.plan.world


def test_a_run_of_another_plan_is_not_gone_on_with(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "run" / "plan.toml").write_text(Plan(rounds=3).to_toml())
    with pytest.raises(RunDirError, match="holds a run of another plan; expected another --runs"):
        worlds._ran(Plan(rounds=4), tmp_path / "run", print)


def test_a_first_look_does_not_take_the_place_of_the_record():
    refused = CliRunner().invoke(cli, ["study", "world", "closing", "--rounds", "2"])
    assert refused.exit_code == 2
    assert "expected --out as well" in refused.output
