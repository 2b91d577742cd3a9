from functools import partial

import pytest
import torch
from torch import nn

from fedavg import Task, run
from fedavg.engine.model import Model
from fedavg.errors import TaskError
from fedavg.tasks import TASKS
from toys import TOY, toy_plan


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


class Masked(nn.Module):
    """Sums what came before each place, by a mask of zeros and minus infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(8, 8)
        self.out = nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))
        self.register_buffer("nothing", torch.full((2,), torch.nan))

    def forward(self, x):
        weights = torch.softmax(self.scores(x)[:, None, :] + self.mask, dim=-1)
        return self.out((weights * x[:, None, :]).sum(dim=-1))


@pytest.mark.parametrize("engine", ["plain", "graph"])
def test_a_mask_of_infinities_stays_as_it_is_built(engine):
    plan = toy_plan(task=Task("masked", Masked), engine=engine, workers=1, rounds=2)
    result = run(plan)
    assert torch.equal(result.model.mask, Masked().mask)
    assert result.model.nothing.isnan().all()
    assert result.loss[1] < result.loss[0]


class Peak(nn.Module):
    """Remembers something of what it has seen."""

    def __init__(self, start: float, in_place: bool) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)
        self.in_place = in_place
        self.register_buffer("peak", torch.tensor([start]))

    def forward(self, x):
        seen = torch.maximum(self.peak, x.detach().max())
        if self.in_place:
            self.peak.copy_(seen)
        else:
            self.peak = seen
        return self.out(x)


@pytest.mark.parametrize(
    ("start", "in_place", "message"),
    [
        (-torch.inf, True, "training changes the buffer 'peak', which begins with an infinity or NaN"),
        (0.0, False, "training puts another tensor in place of the buffer 'peak'"),
    ],
)
def test_a_change_of_a_buffer_that_would_be_lost_is_refused(start, in_place, message):
    with pytest.raises(TaskError, match=message):
        run(toy_plan(task=Task("peak", partial(Peak, start, in_place)), workers=1))


def test_a_buffer_that_is_changed_in_place_is_averaged():
    result = run(toy_plan(task=Task("peak", partial(Peak, 0.0, True)), workers=1))
    assert result.model.peak > 0


def test_a_constant_that_is_made_anew_is_no_change():
    result = run(toy_plan(task=Task("peak", partial(Peak, 1e6, False)), workers=1, rounds=1))
    assert result.model.peak == 1e6
