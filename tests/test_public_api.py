"""What `import fedavg` gives: names that show, docstrings whose examples run, types that a user's checker accepts."""

import doctest
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

import fedavg
from fedavg.errors import DataError, PlanError, RunDirError, TaskError
from fedavg.plan import option_names
from toys import small_net, toy_plan


def test_the_public_names_show():
    assert dir(fedavg) == sorted(fedavg.__all__)
    assert {"FedAvg", "Client", "SGD", "Adam", "MacroF1", "PlanError", "from_dataset", "STC"} <= set(dir(fedavg))
    for name in fedavg.__all__:
        assert getattr(fedavg, name) is not None
    with pytest.raises(AttributeError, match="module 'fedavg' has no attribute 'Nothing'"):
        _ = fedavg.Nothing


#: Their examples start a Ray of their own, which takes ten seconds; tests/fleets/ray shares one.
ON_RAY = {"RayFleet"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ON_RAY)) for name in sorted(fedavg.__all__)]
)
def test_it_has_a_docstring_whose_example_runs(name):
    found = getattr(fedavg, name)
    if isinstance(found, UnionType):  # a union has no docstring of its own: its members have
        assert {member.__name__ for member in get_args(found)} <= set(fedavg.__all__)
        return
    text = vars(found).get("__doc__") if isinstance(found, type) else found.__doc__
    assert text, f"{name} has no docstring"
    assert ">>>" in text, f"{name} has no example"
    names = {**vars(import_module(found.__module__))}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert result.failed == 0, "".join(report)


def test_help_of_a_plan_shows_its_options():
    for name in option_names():
        assert f"\n    {name} " in fedavg.Plan.__doc__


def test_importing_the_package_does_not_wait_for_pytorch():
    code = "import sys, fedavg; dir(fedavg); import fedavg.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


SCRIPT = """
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

import fedavg


@dataclass(frozen=True)
class Mine(fedavg.FedAvg):
    name = "mine"
    factor: float = 1.0

    def server_update(self, state: fedavg.State, total: fedavg.Sum, work: fedavg.Work) -> fedavg.State:
        return fedavg.State(state.weights + self.factor * total.mean.float())

    def check(self, plan: fedavg.PlanOptions) -> None:
        if plan.schedule("E").values != {1}:
            raise fedavg.PlanError(f"algorithm mine: got E={plan.E}; expected 1")


def build() -> nn.Module:
    return nn.Linear(3, 2)


task = fedavg.Task("mine", build)
data = fedavg.from_arrays(np.zeros((20, 3), np.float32), np.zeros(20, np.int64), partition="iid", clients=4)
plan = fedavg.Plan(task=task, data=data, algorithm=Mine(0.5), stages=[fedavg.Clip(1.0)], optimizer=fedavg.SGD())
result: fedavg.Result = fedavg.run(plan)
weights: Tensor = next(iter(result.model.parameters()))
for event in fedavg.train(plan):
    if isinstance(event, fedavg.Round):
        print(event.round, event.train_loss)
"""


@pytest.mark.parametrize("torch", ["skip", pytest.param("silent", marks=pytest.mark.slow)])
def test_a_users_strict_type_checker_passes(tmp_path, torch):
    """On a script, and on a package of parts; to read all of PyTorch takes most of the time."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n[mypy-torch.*]\nfollow_imports = {torch}\n")
    package = Path(__file__).parents[1] / "examples" / "own_package" / "src" / "own_package"
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", tmp_path / "cache",
               "script.py", package]  # fmt: skip
    source = os.path.dirname(os.path.dirname(fedavg.__file__))  # noqa: PTH120
    env = {**os.environ, "MYPYPATH": source}
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fedavg.run("mnist-2nn"), PlanError, r"run: got 'mnist-2nn' of type str; expected a fedavg.Plan"),
        (lambda: next(fedavg.train(None)), PlanError, "train: got None of type NoneType; expected a fedavg.Plan"),
        (lambda: fedavg.run(toy_plan(), 5), RunDirError, "run: got 5 for run_dir; expected a path"),
        (lambda: fedavg.resume(None), RunDirError, "resume: got None; expected the path of a run directory"),
        (lambda: fedavg.runs(5), RunDirError, "runs: got 5; expected a path"),
        (lambda: fedavg.export_model(None), RunDirError, "export_model: got None; expected a path"),
        (lambda: fedavg.from_folder(None), DataError, "from_folder: got None; expected a path"),
        (lambda: fedavg.from_clients(5), DataError, r"from_clients: got int; expected a list with \(x, y\)"),
        (lambda: fedavg.from_huggingface(5, x="a", y="b"), DataError, "got int; expected a datasets.Dataset"),
        (lambda: fedavg.sweep(toy_plan(), 5), PlanError, "grid: got 5; expected values by the name of an option"),
        (lambda: fedavg.Task("i", nn.Linear(10, 4)), TaskError, r"build: got a module \(Linear\); expected a function"),
        (lambda: fedavg.Task("i", 5), TaskError, "build: got 5; expected a function"),
        (lambda: fedavg.Task("i", nn.Identity, loss="mse"), TaskError, "loss: got 'mse'; expected a function"),
        (lambda: fedavg.Task("", nn.Identity), TaskError, "name: got ''; expected a text"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_told_so(call, error, message):
    with pytest.raises(error, match=message):
        call()


SIZES, ROWS = np.array([4, 4]), torch.zeros(4)


class Given(fedavg.FederatedData):
    """Gives whatever it was given."""

    name, fingerprint, sizes = "given", "given", None

    def __init__(self, sizes, examples):
        self.sizes, self.examples = sizes, examples

    def client(self, k):
        return self.examples


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Given([4, 4], None), "sizes is list; expected a numpy array"),
        (Given(SIZES, (ROWS, ROWS)), r"client\(0\) gave tuple; expected fedavg.Examples"),
        (Given(SIZES, fedavg.Examples("a", ROWS)), r"client\(0\): x holds str; expected tensors"),
        (Given(SIZES, fedavg.Examples(ROWS[:3], ROWS)), "x has 3 rows, and sizes says 4; expected as many"),
    ],
)
def test_a_source_that_gives_no_examples_is_told_so(data, message):
    with pytest.raises(DataError, match=message):
        fedavg.run(toy_plan(data=data))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (fedavg.Task("a", lambda x: x), r"task 'a': build\(\) failed: TypeError: .*missing 1 required"),
        (fedavg.Task("a", small_net, collate=fedavg.padded), r"collate gave function; expected a pair \(x, y\)"),
        (fedavg.Task("a", small_net, loss=lambda o, y: 5), "the loss gave 5 of type int; expected a tensor of one"),
    ],
)
def test_a_task_that_can_not_be_built_or_judged_is_told_so(task, message):
    with pytest.raises(TaskError, match=message):
        fedavg.run(toy_plan(task=task))


def test_a_large_value_in_a_wrong_place_is_shown_in_short():
    with pytest.raises(PlanError, match=r"data: got Examples\(.{87} \.\.\. of type Examples; expected"):
        fedavg.Plan(data=fedavg.Examples(torch.zeros(99, 9), ROWS))
