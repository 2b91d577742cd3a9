"""Exported models are read back by the libraries that are to use them."""

import numpy as np
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import nn

import fedavg
from fedavg import ArrayData, Examples, Task
from fedavg.cli import cli
from fedavg.errors import FedAvgError, PlanError, RunDirError
from toys import TOY, toy_data, toy_plan

PARTS = {"task": TOY, "data": toy_data()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A rate that is too high: the best model is not the last."""
    path = tmp_path_factory.mktemp("export") / "run"
    return path, fedavg.run(toy_plan(rounds=5, lr=2.0), path)


def inputs():
    return TOY.prepare(toy_data().test.x).float()


def test_onnx_gives_the_outputs_of_the_module_for_any_number_of_examples(run, tmp_path):
    path, result = run
    made = fedavg.export_model(path, "onnx", tmp_path / "model.onnx", **PARTS)
    assert made.difference < 1e-4
    session = onnxruntime.InferenceSession(made.path.read_bytes())
    for count in (1, 2, 7):
        (output,) = session.run(None, {session.get_inputs()[0].name: inputs()[:count].numpy()})
        np.testing.assert_allclose(output, result.model(inputs()[:count]).detach().numpy(), atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torchscript_needs_nothing_of_this_package(run, tmp_path):
    path, result = run
    made = fedavg.export_model(path, "torchscript", tmp_path / "model.pt", **PARTS)
    assert torch.allclose(torch.jit.load(made.path)(inputs()), result.model(inputs()), atol=1e-6)


def test_the_best_and_the_last_model_as_weights(run, tmp_path):
    path, result = run
    last = fedavg.export_model(path, "safetensors", tmp_path / "last.safetensors", **PARTS)
    best = fedavg.export_model(path, "state-dict", tmp_path / "best.pt", which="best", **PARTS)
    for name, tensor in load_file(last.path).items():
        assert torch.equal(tensor, result.model.state_dict()[name])
    for name, tensor in torch.load(best.path, weights_only=True).items():
        assert torch.equal(tensor, result.best_model.state_dict()[name])


def test_the_card_says_what_the_model_is(run, tmp_path):
    path, result = run
    card = fedavg.export_model(path, "safetensors", tmp_path / "m.safetensors", **PARTS).card.read_text()
    assert f"accuracy: {result.accuracy[-1]:.4f}" in card
    assert f"digest `{result.plan.digest}`" in card
    assert "No differential privacy" in card
    assert "after round 5" in card


def test_a_private_models_card_tells_its_epsilon(tmp_path):
    result = fedavg.run(toy_plan(rounds=2, stages=["weigh:equal", "clip:1.0", "noise:1.0"]), tmp_path / "run")
    card = fedavg.export_model(tmp_path / "run", out=tmp_path / "m.safetensors", **PARTS).card.read_text()
    assert f"epsilon {result.summary.privacy['epsilon']:.3f}" in card
    assert "protects nobody" in card


class Odd(nn.Module):
    """Depends on the number of rows in a way that a trace cannot see."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x):
        return self.inner(x) * float(len(x))


def test_a_model_that_gives_other_outputs_is_not_kept(tmp_path):
    x = torch.rand(20, 4)
    y = (x.sum(1) > 2).long()
    data = ArrayData("odd", x, y, [np.arange(10), np.arange(10, 20)], Examples(x, y))
    plan = fedavg.Plan(task=Task("odd", Odd), data=data, C=1.0, rounds=1, workers=1)
    fedavg.run(plan, tmp_path / "run")
    with pytest.raises(FedAvgError, match="gives other outputs than the module"):
        fedavg.export_model(tmp_path / "run", "torchscript", tmp_path / "m.pt", task=plan.task, data=data)
    assert not (tmp_path / "m.pt").exists()


def test_mistakes_are_told(run, tmp_path):
    path, _ = run
    with pytest.raises(PlanError, match="got 'tflite'; expected one of safetensors, state-dict, torchscript, onnx"):
        fedavg.export_model(path, "tflite", **PARTS)
    with pytest.raises(PlanError, match="expected 'last' or 'best'"):
        fedavg.export_model(path, which="first", **PARTS)
    with pytest.raises(RunDirError, match="is not a run directory"):
        fedavg.export_model(tmp_path)


def test_the_command(tmp_path):
    fedavg.run(fedavg.Plan(data="mnist", C=0.02, rounds=1, workers=1), tmp_path / "run")
    options = ["export-model", str(tmp_path / "run"), "--to", "onnx", "--out", str(tmp_path / "m.onnx")]
    told = CliRunner().invoke(cli, options, catch_exceptions=False)
    assert "its outputs differ from the module's by" in told.output
    assert (tmp_path / "m.onnx").stat().st_size > 100_000
