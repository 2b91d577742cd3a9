import pytest
import torch
from torch import nn

from fedavg import Task
from fedavg.engine.model import Model
from fedavg.errors import TaskError
from fedavg.tasks import TASKS
from toys import TOY


@pytest.mark.parametrize(("name", "count"), [("mnist-2nn", 199_210), ("mnist-cnn", 1_663_370)])
def test_the_paper_s_parameter_counts(name, count):
    model = Model(TASKS[name], seed=0)
    assert sum(p.numel() for p in model.module.parameters()) == count
    assert len(model.vector) == count


def test_parameters_are_views_of_the_vector():
    model = Model(TOY, seed=0)
    model.vector.fill_(0.5)
    assert all((p == 0.5).all() for p in model.module.parameters())
    assert [slot.offset for slot in model.slots] == [0, 128, 144, 192]


def test_initial_weights_follow_from_the_seed_alone():
    torch.manual_seed(1)
    first = Model(TOY, seed=3).vector
    torch.manual_seed(2)
    before = torch.get_rng_state()
    again = Model(TOY, seed=3).vector
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before), "the user's generator is left alone"
    assert not torch.equal(first, Model(TOY, seed=4).vector)


class Mixed(nn.Module):
    """Has everything that a module can hold: frozen and tied weights, float and integer buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 8, bias=False)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.out.weight

    def forward(self, x):
        return self.tied(torch.relu(self.out(self.norm(self.frozen(x)))))


def test_what_is_in_the_vector_and_what_is_kept():
    model = Model(Task("mixed", Mixed), seed=0)
    assert [(slot.name, slot.trainable) for slot in model.slots] == [
        ("norm.weight", True), ("norm.bias", True), ("out.weight", True),
        ("norm.running_mean", False), ("norm.running_var", False),
    ]  # fmt: skip
    start = model.vector.clone()
    frozen = model.module.frozen.weight.clone()
    model.module(torch.rand(5, 8))
    assert model.module.norm.num_batches_tracked == 1
    assert not torch.equal(model.vector, start), "statistics are part of the vector"
    model.load(start)
    assert model.module.norm.num_batches_tracked == 0, "integer counters start again with every client"
    assert torch.equal(model.module.frozen.weight, frozen)


def test_unchanged_puts_everything_back():
    model = Model(Task("mixed", Mixed), seed=0)
    model.module(torch.rand(5, 8))
    vector = model.vector.clone()
    with model.unchanged():
        model.module(torch.rand(5, 8))
    assert torch.equal(model.vector, vector)
    assert model.module.norm.num_batches_tracked == 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.Linear(2, 2).double(), "'weight' is torch.float64; expected torch.float32"),
        (lambda: nn.ReLU(), "no trainable parameter"),
        (lambda: 3, "gave int; expected a torch.nn.Module"),
    ],
)
def test_a_module_that_can_not_be_used_is_refused(build, message):
    with pytest.raises(TaskError, match=message):
        Model(Task("bad", build), seed=0)
