"""Evaluation alone, of a run and of a file of weights."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import fedavg
from fedavg import Plan
from fedavg.cli import cli
from fedavg.errors import PlanError, RunDirError, TaskError
from fedavg.runlog.rundir import RunDir
from fedavg.study.evaluate import evaluate
from toys import TOY, blobs, toy_data, toy_plan


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "toy"
    fedavg.run(toy_plan(holdout=0.3, evaluate="server,clients"), path)
    return path


def test_a_run_is_judged_as_it_judged_itself(run_dir):
    last = RunDir(run_dir).rows()[-1]
    for workers in (1, 2):
        found = evaluate(run_dir, toy_data(), TOY, holdout=0.3, evaluate="server,clients", workers=workers)
        assert found.metrics == last["test"]
        assert found.on_clients.metrics == last["on_clients"]["metrics"]
        assert found.on_clients.spread == last["on_clients"]["spread"]


def test_weights_in_a_file_are_judged_the_same(run_dir):
    found = evaluate(run_dir / "model.safetensors", toy_data(), TOY, metrics="f1:3")
    assert {name: found.metrics[name] for name in ("accuracy", "loss")} == RunDir(run_dir).rows()[-1]["test"]
    assert 0 <= found.metrics["f1"] <= 1


def test_a_file_of_examples_is_a_test_set(run_dir, tmp_path):
    test = toy_data().test
    np.savez(tmp_path / "own.npz", x=test.x.numpy(), y=test.y.numpy())
    found = evaluate(run_dir, tmp_path / "own.npz", TOY)
    assert found.metrics == RunDir(run_dir).rows()[-1]["test"]
    assert found.examples == len(test)


def test_a_run_on_a_named_data_set_finds_it_where_it_is_kept(tmp_path):
    fedavg.run(Plan(data="mnist", C=0.01, rounds=1, workers=1), tmp_path / "run")
    kept = evaluate(tmp_path / "run", workers=1, data_dir=str(tmp_path))
    assert kept.metrics == RunDir(tmp_path / "run").rows()[-1]["test"]
    with pytest.raises(PlanError, match="data_dir: got '.*', where named data sets are kept, and data is an object"):
        evaluate(tmp_path / "run", toy_data(), TOY, data_dir=str(tmp_path))


def test_what_does_not_fit_is_told(run_dir, tmp_path):
    with pytest.raises(RunDirError, match="does not exist; expected a run directory or a .safetensors file"):
        evaluate(tmp_path / "nothing")
    with pytest.raises(PlanError, match="holds weights alone; expected the task and the data too"):
        evaluate(run_dir / "model.safetensors")
    with pytest.raises(TaskError, match="is no model of task 'mnist-2nn'"):
        evaluate(run_dir / "model.safetensors", "mnist", "mnist-2nn")
    with pytest.raises(PlanError, match="label: got 'kind', the column of a table; expected data in a .csv"):
        evaluate(run_dir, toy_data(), TOY, label="kind")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with pytest.raises(RunDirError, match="cannot be read"):
        evaluate(tmp_path / "junk.safetensors", toy_data(), TOY)
    x, y = blobs(4, seed=0)
    np.savez(tmp_path / "narrow.npz", x=x[:, :3].numpy(), y=y.numpy())
    with pytest.raises(TaskError, match="cannot be"):
        evaluate(run_dir, tmp_path / "narrow.npz", TOY, workers=1)


def test_the_command(tmp_path):
    fedavg.run(Plan(task="mnist-2nn", C=0.02, rounds=1, workers=1, holdout=0.1, partition="shards"), tmp_path / "run")
    shown = CliRunner().invoke(cli, ["evaluate", str(tmp_path / "run"), "--metrics", "f1:10"], catch_exceptions=False)
    assert "mnist-2nn on 10,000 examples of" in shown.output
    assert "accuracy on 100 clients" in shown.output
    ask = ["evaluate", str(tmp_path / "run/model.safetensors"), "--task", "mnist-2nn", "--data", "mnist", "--json"]
    printed = json.loads(CliRunner().invoke(cli, ask, catch_exceptions=False).stdout)
    assert printed["metrics"] == RunDir(tmp_path / "run").rows()[-1]["test"]
