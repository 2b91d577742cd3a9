"""Sweeps on toy data in real processes."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import fedavg
import programs
from fedavg.cli import cli
from fedavg.errors import FedAvgError, PlanError
from toys import TOY, toy_data

TESTS = Path(__file__).parents[2]
PLAN = fedavg.Plan(task="toys:TOY", data="paper_toys:DATA", C=0.5, rounds=8, workers=1)
#: Parts that are objects are run in this process.
HERE = fedavg.Plan(task=TOY, data=toy_data((30, 40, 20, 30)), C=0.5, rounds=8, workers=1)
PATH = os.pathsep.join(map(str, (TESTS, TESTS / "paper")))


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", PATH)
    monkeypatch.syspath_prepend(str(TESTS / "paper"))


def test_every_run_of_a_sweep_is_the_run_by_itself(tmp_path):
    found = fedavg.sweep(PLAN, {"lr": [0.05, 0.4]}, seeds=2, directory=tmp_path, keep_all=True, jobs=2)
    assert {entry.status for entry in found.entries} == {"done"}
    for entry in found.entries:
        alone = [fedavg.run(replace(PLAN, seed=seed, **entry.settings)).accuracy for seed in (0, 1)]
        assert entry.best.mean == pytest.approx(sum(curve.max() for curve in alone) / 2, abs=1e-5)
        assert entry.final.low == pytest.approx(min(curve[-1] for curve in alone), abs=1e-5)
    assert found.best.best.mean == max(entry.best.mean for entry in found.entries)
    assert json.loads((tmp_path / "sweep.json").read_text())["best"] == found.best.settings
    said = []
    again = fedavg.sweep(PLAN, {"lr": [0.05, 0.4]}, seeds=2, directory=tmp_path, keep_all=True, say=said.append)
    assert (said, again.entries) == ([], found.entries)
    frame = found.to_pandas()
    assert frame["lr"].tolist() == [entry.settings["lr"] for entry in found.entries]
    assert frame["best"].tolist() == [entry.best.mean for entry in found.entries]


def test_objects_from_python_are_run_in_this_process_and_taken_up_again(tmp_path):
    grid = {"algorithm": [fedavg.FedAvg(), fedavg.FedProx(mu=0.5)], "lr": [0.4, 0.001]}
    said = []
    found = fedavg.sweep(HERE, grid, directory=tmp_path, say=said.append)
    assert "one after another" in said[0]
    assert found.best.settings["lr"] == 0.4
    assert {entry.status for entry in found.entries} <= {"done", "dropped"}
    alone = fedavg.run(replace(HERE, **found.best.settings))
    assert found.best.best.mean == pytest.approx(alone.accuracy.max(), abs=1e-5)
    before = {path: path.read_bytes() for path in tmp_path.glob("runs/*/metrics.jsonl")}
    again = fedavg.sweep(HERE, grid, directory=tmp_path)
    assert [entry.to_dict() for entry in again.entries] == [entry.to_dict() for entry in found.entries]
    assert {path: path.read_bytes() for path in tmp_path.glob("runs/*/metrics.jsonl")} == before


def test_one_that_diverges_is_told_and_does_not_stop_the_others(tmp_path):
    """In this process; a process of its own that diverges: tests/campaign/test_execute.py."""
    found = fedavg.sweep(HERE, {"lr": [0.1, 1e20]}, directory=tmp_path)
    done, lost = found.entries
    assert (done.status, lost.status, lost.settings) == ("done", "diverged", {"lr": 1e20})
    assert "diverged" in lost.reason


def test_by_a_metric_of_which_less_is_better(tmp_path):
    plan = replace(HERE, patience="loss=100")
    found = fedavg.sweep(plan, {"lr": [0.01, 0.4]}, directory=tmp_path, keep_all=True)
    assert found.goal.metric == "loss"
    assert found.entries[0].best.mean < found.entries[1].best.mean
    assert found.best.settings == {"lr": 0.4}


def test_mistakes_are_told(tmp_path):
    with pytest.raises(PlanError, match="seeds: got 0"):
        fedavg.sweep(PLAN, {"lr": [0.1]}, seeds=0, directory=tmp_path)
    with pytest.raises(PlanError, match="sweep: got 3 of type int; expected a fedavg.Plan"):
        fedavg.sweep(3, {"lr": [0.1]}, directory=tmp_path)
    with pytest.raises(FedAvgError, match="cannot import 'no_such_module:DATA'"):
        fedavg.sweep(replace(PLAN, data="no_such_module:DATA"), {"lr": [0.1]}, directory=tmp_path)


FILE = """
task = "toys:TOY"
data = "paper_toys:DATA"
C = 0.5
rounds = 3000

[sweep]
seeds = 1
keep_all = true

[sweep.grid]
lr = "0.1:0.2:2lin"
"""


def test_ctrl_c_and_the_same_command_goes_on(tmp_path):
    (tmp_path / "plan.toml").write_text(FILE)
    out, err = tmp_path / "out", tmp_path / "err"
    first = programs.start("sweep", "plan.toml", out=out, err=err, cwd=tmp_path, prepare=[programs.heed_ctrl_c])
    end = time.monotonic() + 120
    while sum(p.read_bytes().count(b"\n") > 5 for p in tmp_path.glob("sweeps/plan/runs/*/metrics.jsonl")) < 2:
        assert time.monotonic() < end
        assert first.is_alive(), err.read_text()
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGINT)
    first.join(60)
    assert first.exitcode == 130
    begun = {p: p.read_bytes() for p in tmp_path.glob("sweeps/plan/runs/*/metrics.jsonl")}
    short = FILE.replace("rounds = 3000", "rounds = 3")
    (tmp_path / "plan.toml").write_text(short)
    second = programs.fedavg("sweep", "plan.toml", "--json", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    document = json.loads(second.stdout)
    assert [point["status"] for point in document["points"]] == ["done", "done"]
    assert Path(tmp_path / document["picture"]).stat().st_size > 10_000
    assert all(path.read_bytes() == rows for path, rows in begun.items())  # another plan, and so other runs


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--set", "workers=2"], "workers: got 2, and each run of a sweep has one; expected --jobs"),
        (["--keep-all", "--grid", "E=1,2"], "keep_all: got true without a learning rate in the grid"),
        (
            ["--keep-all", "--search", "random:2"],
            "keep_all: got true with search 'random:2', where no point is dropped",
        ),
        (["--set", "E=1", "--set", "E=2"], "E: got both '1' and '2'; expected it once"),
    ],
)
def test_an_option_without_effect_is_refused(tmp_path, options, told):
    (tmp_path / "plan.toml").write_text(FILE.replace("keep_all = true", ""))
    answer = CliRunner().invoke(cli, ["sweep", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out"), *options])
    assert told in str(answer.exception)
    assert not (tmp_path / "out").exists()


def test_run_refuses_a_file_that_describes_a_sweep(tmp_path):
    (tmp_path / "plan.toml").write_text(FILE)
    ended = programs.fedavg("run", "plan.toml", cwd=tmp_path)
    assert ended.returncode == 2
    assert "describes a sweep ([sweep]), not one run; expected: fedavg sweep plan.toml" in ended.stderr
