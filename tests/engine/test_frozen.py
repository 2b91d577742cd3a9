"""Weights that are not trained: they stay where they are, nobody changes them, and others are told apart."""

import pytest
import torch
from torch import nn

import fedavg
from fedavg.engine.model import Model
from fedavg.engine.trainer import Trainer
from fedavg.errors import TaskError
from toys import blobs, epoch


class Half(nn.Module):
    """A frozen layer that has another name too, and a trained one with statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8).requires_grad_(False)
        self.alias = self.body
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.norm(self.body(x)))


HALF = fedavg.Task("half", Half)
EXAMPLES = fedavg.Examples(*blobs(12, 0))


def test_frozen_weights_are_neither_copied_nor_written_to():
    trainer = Trainer(HALF, seed=0)
    trainer.choose_engine("auto", EXAMPLES)
    body = trainer.model.module.body.weight
    before, place, version = body.clone(), body.data_ptr(), body._version
    start = trainer.weights.clone()
    epoch(trainer, EXAMPLES, 4, 0.1)
    assert not torch.equal(trainer.weights, start)
    trainer.load(start)
    assert (body.data_ptr(), body._version) == (place, version)
    assert torch.equal(body, before)
    assert trainer.model.frozen.numbers == 8 * 8 + 8


def test_the_fingerprint_tells_names_and_values_apart():
    frozen = Model(HALF, seed=0).frozen.fingerprint
    assert len(frozen) == 32
    assert frozen == Model(HALF, seed=0).frozen.fingerprint
    assert frozen != Model(HALF, seed=1).frozen.fingerprint

    class Renamed(Half):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.body
            del self.body, self.alias

    assert frozen != Model(fedavg.Task("renamed", Renamed), seed=0).frozen.fingerprint
    assert Model(fedavg.Task("line", lambda: nn.Linear(8, 3)), seed=0).frozen.fingerprint == ""


def test_a_model_takes_frozen_weights_from_memory_that_others_read_too():
    first = Model(HALF, seed=0)
    shared = {name: tensor.clone() for name, tensor in first.frozen.tensors.items()}
    second = Model(HALF, seed=0, frozen=shared)
    assert second.module.body.weight.data_ptr() == shared["body.weight"].data_ptr()
    second.load(first.vector)
    with torch.no_grad():
        shared["body.bias"][3] += 1e-7
    with pytest.raises(TaskError, match="another frozen 'body.bias' here; expected the same in each process"):
        Model(HALF, seed=0, frozen=shared)
    with pytest.raises(TaskError, match="other frozen weights"):
        Model(HALF, seed=0, frozen={})


class Moving(Half):
    """Writes to its frozen weights, in the open or behind PyTorch's back."""

    def __init__(self, openly: bool) -> None:
        super().__init__()
        self.openly = openly

    def forward(self, x):
        with torch.no_grad():
            (self.body.bias if self.openly else self.body.bias.data).mul_(0.9)
        return super().forward(x)


@pytest.mark.parametrize("openly", [True, False])
def test_a_module_that_changes_what_it_froze_is_refused_before_round_1(openly):
    trainer = Trainer(fedavg.Task("moving", lambda: Moving(openly)), seed=0)
    with pytest.raises(TaskError, match="the module changes .* frozen .*register_buffer"):
        trainer.choose_engine("auto", EXAMPLES)


def test_tensors_of_a_model_leave_out_what_is_frozen_and_are_read_back():
    model = Model(HALF, seed=0)
    model.vector.add_(1.0)
    tensors = model.trained_tensors()
    assert sorted(tensors) == [
        "norm.bias", "norm.num_batches_tracked", "norm.running_mean", "norm.running_var", "norm.weight",
        "out.bias", "out.weight",
    ]  # fmt: skip
    again = Model(HALF, seed=0)
    again.load_tensors(tensors)
    assert torch.equal(again.vector, model.vector)
    again.load_tensors(dict(model.module.state_dict()))
    with pytest.raises(TaskError, match="'body.weight' is frozen, and has other values there"):
        Model(HALF, seed=1).load_tensors(dict(model.module.state_dict()))
    with pytest.raises(TaskError, match="it lacks out.bias"):
        again.load_tensors({name: tensor for name, tensor in tensors.items() if name != "out.bias"})
    with pytest.raises(TaskError, match="it has other besides"):
        again.load_tensors(tensors | {"other": torch.zeros(1)})
