"""One native function serves batches of every length, and all that a run needs is compiled before it starts."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedavg import Examples, Task
from fedavg.bench.models import ENCODER, RESNET
from fedavg.client import Client
from fedavg.engine.lengths import PerRow, at_length, batch_lengths, for_all_lengths
from fedavg.engine.model import Model
from fedavg.engine.ready import make_ready
from fedavg.engine.tape import record
from fedavg.engine.trainer import Trainer
from fedavg.optimizers import make_optimizer
from fedavg.types import Work
from toys import TOY, blobs, epoch, toy_plan


class Odd(nn.Module):
    """Does something else for batches of three."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x):
        return self.layer(x) * (2.0 if len(x) == 3 else 1.0)


class Pairs(nn.Module):
    """Compares all examples of a batch with each other: what it makes grows with the square of the length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x):
        return self.layer(x), (x @ x.t()).view(-1, 1).mean()


PAIRS = Task("pairs", Pairs, loss=lambda o, y: F.cross_entropy(o[0], y) + 0.0 * o[1], metrics={})


def tokens(n):
    return Examples(torch.randint(0, 100, (n, 32)), torch.randint(0, 100, (n, 32)))


def images(n):
    return Examples(torch.rand(n, 3, 32, 32), torch.randint(0, 10, (n,)))


@pytest.mark.parametrize(
    ("task", "make"), [(TOY, lambda n: Examples(*blobs(n, seed=0))), (ENCODER, tokens), (RESNET, images)]
)
def test_what_was_recorded_for_all_lengths_is_what_each_length_records(task, make):
    model = Model(task, seed=0)
    examples = make(9)
    tapes = {n: record(model, Examples(examples.x[:n], examples.y[:n])) for n in (9, 8, 4)}
    tape = for_all_lengths(tapes[9], 9, tapes[8], 8)
    assert tape is not None
    again = at_length(tape, 4)
    assert [op.func for op in again.ops] == [op.func for op in tapes[4].ops]
    assert [op.args for op in again.ops] == [op.args for op in tapes[4].ops]
    assert again.layouts == tapes[4].layouts


def test_a_batch_whose_parts_grow_with_the_square_of_its_length_is_recorded_for_each():
    model = Model(PAIRS, seed=0)
    tapes = {n: record(model, Examples(*blobs(n, seed=0))) for n in (6, 5)}
    assert for_all_lengths(tapes[6], 6, tapes[5], 5) is None


@pytest.mark.parametrize("task", [TOY, PAIRS])
def test_every_length_equals_the_plain_path(task):
    fast, slow = Trainer(task, seed=0), Trainer(task, seed=0)
    examples = Examples(*blobs(23, seed=3))
    fast.choose_engine("graph", Examples(examples.x[:5], examples.y[:5]))
    for batch in (5, 4, 23, 1):
        losses = [epoch(trainer, examples, batch, 0.1) for trainer in (fast, slow)]
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(fast.weights, slow.weights, rtol=1e-4, atol=1e-5)


def test_the_rows_of_a_bias_are_added_one_by_one_or_first_as_the_length_says():
    """Up to 64 rows by a product with ones, more by their sum, whatever length came first."""
    fast, slow = Trainer(TOY, seed=0), Trainer(TOY, seed=0)
    examples = Examples(*blobs(200, seed=3))
    fast.choose_engine("graph", Examples(examples.x[:5], examples.y[:5]))
    for batch in (100, 7):
        epoch(fast, examples, batch, 0.1)
        epoch(slow, examples, batch, 0.1)
        torch.testing.assert_close(fast.weights, slow.weights, rtol=1e-4, atol=1e-5)


def test_numbers_that_are_not_in_proportion_make_no_tape():
    model = Model(TOY, seed=0)
    tapes = {n: record(model, Examples(*blobs(n, seed=0))) for n in (6, 5)}
    assert for_all_lengths(tapes[6], 6, tapes[5], 4) is None
    assert PerRow(32).at(3) == 96
    assert isinstance(PerRow(32, is_float=True).at(3), float)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any),
    st.integers(1, 15) | st.just(float("inf")),
    st.booleans(),
)
def test_the_lengths_of_batches_are_those_that_clients_meet(sizes, batch, drop_last):
    met = set()
    for size in filter(None, sizes):
        client = Client(0, Examples(torch.zeros(size), torch.zeros(size)), None, 0, 1, {}, drop_last)
        full, used = client._batch(batch)
        met |= {min(full, used - start) for start in range(0, used, full)}
    assert batch_lengths(np.array(sizes), batch, drop_last) == sorted(met)


def test_nothing_is_compiled_after_the_start():
    """Clients of many sizes, an optimiser with momentum: all that they need is there before round 1."""
    sizes = np.array([3, 7, 12, 5, 20, 9, 1])
    plan = toy_plan(optimizer="sgd:momentum=0.9")
    trainer = Trainer(TOY, 0, "cpu", make_optimizer(plan.optimizer))
    examples = Examples(*blobs(20, seed=1))
    trainer.choose_engine("graph", Examples(examples.x[:4], examples.y[:4]))
    make_ready(trainer, examples, sizes, plan.schedule("B").values, plan.drop_last)
    graph = trainer._graph
    assert graph
    before = graph.compilations
    assert before == 2  # plain SGD, by which the step is proved, and the plan's
    for size in sizes:
        client = Client(0, Examples(*blobs(int(size), seed=4)), trainer, 0, 1, {})
        client.epochs(Work(1, 2, 4, 0.1))
    assert graph.compilations == before


def test_a_module_that_does_something_else_for_some_length_is_compiled_for_each():
    task = Task("odd", Odd)
    fast, slow = Trainer(task, seed=0), Trainer(task, seed=0)
    examples = Examples(*blobs(23, seed=3))
    fast.choose_engine("graph", Examples(examples.x[:10], examples.y[:10]))
    make_ready(fast, examples, np.array([23, 20]), [10], drop_last=False)
    epoch(fast, examples, 10, 0.1)
    epoch(slow, examples, 10, 0.1)
    torch.testing.assert_close(fast.weights, slow.weights, rtol=1e-5, atol=1e-6)
