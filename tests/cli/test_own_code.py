"""Code of a user's own, named on the command line and in plan files: real processes."""

import json

import pytest

from programs import fedavg

MINE = """
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

import fedavg
from fedavg.algorithms.fedavg import FedAvg

task = fedavg.Task("mine", lambda: nn.Linear(4, 2))


def blobs(clients: int = 4) -> fedavg.FederatedData:
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.integers(0, 2, 200))
    x = torch.from_numpy(rng.standard_normal((200, 4), np.float32)) + 2 * y[:, None]
    return fedavg.ArrayData("blobs", x, y, np.array_split(np.arange(200), clients), fedavg.Examples(x, y))


@dataclass(frozen=True)
class Slow(FedAvg):
    name = "slow"
    rate: float = 1.0

    def server_update(self, state, total, work):
        return replace(state, weights=(state.weights.double() + self.rate * total.mean).float())
"""
PLAN = """
task = "mine:task"
data = "mine:blobs:clients=6"
algorithm = "mine:Slow:rate=0.5"
C = 0.5
rounds = 3
workers = 2
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path


def summary(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_code_in_the_current_folder_is_found(folder):
    got = summary(fedavg("run", "plan.toml", "--run-dir", "run", "--json", "--no-plot", cwd=folder))
    assert got["rounds"] == 3
    options = ["--task", "mine:task", "--data", "mine:blobs:clients=6", "--algorithm", "mine:Slow:0.5", "-C", "0.5"]
    again = summary(fedavg("run", "mnist-2nn", *options, "--rounds", "3", "--run-dir", "b", "--json", "--no-plot",
                           cwd=folder))  # fmt: skip
    assert again["model_sha256"] == got["model_sha256"]


def test_a_run_of_own_code_is_judged_again(folder):
    ended = summary(fedavg("run", "plan.toml", "--run-dir", "run", "--json", "--no-plot", cwd=folder))
    judged = summary(fedavg("evaluate", "run", "--json", cwd=folder))
    assert judged["metrics"]["accuracy"] == ended["final_accuracy"]


def test_a_run_of_own_code_is_made_longer(folder):
    fedavg("run", "plan.toml", "--run-dir", "run", "--no-plot", cwd=folder)
    longer = summary(fedavg("resume", "run", "--rounds", "7", "--json", "--no-plot", cwd=folder))
    whole = summary(fedavg("run", "plan.toml", "--rounds", "7", "--run-dir", "b", "--json", "--no-plot", cwd=folder))
    assert (longer["rounds"], longer["model_sha256"]) == (7, whole["model_sha256"])


def test_code_that_was_changed_is_refused(folder):
    fedavg("run", "plan.toml", "--run-dir", "run", "--no-plot", cwd=folder)
    (folder / "mine.py").write_text(MINE.replace("self.rate * total", "self.rate**2 * total"))
    result = fedavg("resume", "run", "--rounds", "7", cwd=folder)
    assert result.returncode == 2
    assert result.stderr.startswith("error: algorithm: run was started with another one: class was mine.Slow")


def test_code_that_is_not_there_is_named(folder):
    result = fedavg("run", "plan.toml", "--algorithm", "yours:Slow", "--run-dir", "run", cwd=folder)
    assert result.returncode == 2
    assert "error: algorithm: cannot import 'yours:Slow': No module named 'yours'" in result.stderr
    result = fedavg("run", "plan.toml", "--data", "yours:blobs", "--run-dir", "run", cwd=folder)
    assert "No module named 'yours'; expected 'module:Name' of installed code" in result.stderr
    assert not (folder / "run").exists()


def test_a_folder_that_is_no_run_is_not_offered_to_be_resumed(folder):
    result = fedavg("run", "plan.toml", "--run-dir", folder, cwd=folder)
    assert result.returncode == 2
    assert "It is no run" in result.stderr
    assert "resume" not in result.stderr
