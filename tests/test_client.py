"""What a client half may use, and what a client's errors say."""

from dataclasses import dataclass
from math import nan

import numpy as np
import pytest
import torch
from torch import nn

import fedavg
from fedavg import ArrayData, Correction, Examples, Task, Update, seeds
from fedavg.algorithms.fedavg import FedAvg
from fedavg.errors import DataError, Diverged, TaskError
from toys import blobs, toy_data, toy_plan


@dataclass(frozen=True)
class ByHand(FedAvg):
    """FedAvg as any PyTorch code: a user's own loop over batches."""

    name = "byhand"

    def client_update(self, client, weights, work):
        client.load(weights)
        optimizer = torch.optim.SGD(client.module.parameters(), work.lr)
        for _epoch in range(work.epochs):
            total = 0.0
            for x, y in client.batches(work.batch):
                optimizer.zero_grad()
                loss = client.loss(x, y)
                loss.backward()
                optimizer.step()
                total += float(loss.detach()) * len(y)
        return Update(client.weights - weights, weight=client.n, metrics={"train_loss": total / client.n})


@dataclass(frozen=True)
class Ditto(FedAvg):
    """A user's own: each client also keeps a model of its own, pulled to the shared one (Li et al. 2021)."""

    name = "ditto"
    keeps_state = True
    pull: float = 0.5

    def client_update(self, client, weights, work):
        update = super().client_update(client, weights, work)
        client.load(client.state.get("own", weights))
        client.epochs(work, Correction(pull=self.pull, towards=weights))
        client.state["own"] = client.weights.clone()
        return update


@dataclass(frozen=True)
class Noisy(FedAvg):
    """A user's own, with random numbers of the client's."""

    name = "noisy"

    def client_update(self, client, weights, work):
        update = super().client_update(client, weights, work)
        noise = torch.from_numpy(client.rng.standard_normal(len(weights), "float32"))
        return Update(update.vector + 0.001 * noise, update.weight, update.metrics)


def weights_after(plan):
    *_, last = fedavg.train(plan)
    return last.state.weights


@pytest.mark.parametrize("changes", [{}, {"drop_last": True, "B": 3}, {"B": "inf"}])
def test_a_loop_of_ones_own_is_fedavg_bit_for_bit_on_the_plain_path(changes):
    changes = {"engine": "plain", "rounds": 2, **changes}
    expected = weights_after(toy_plan(**changes))
    assert torch.equal(weights_after(toy_plan(algorithm=ByHand(), **changes)), expected)


@pytest.mark.parametrize("algorithm", [Ditto(), Noisy()])
def test_ones_own_client_half_gives_the_same_bits_on_any_number_of_workers(algorithm):
    one, two = (weights_after(toy_plan(algorithm=algorithm, rounds=3, workers=workers)) for workers in (1, 2))
    assert torch.equal(one, two)


def test_ditto_shares_what_fedavg_shares():
    assert torch.equal(weights_after(toy_plan(algorithm=Ditto())), weights_after(toy_plan()))


def test_a_short_last_batch_is_left_out_unless_it_is_the_only_one():
    """Sizes 7 and 2 at B = 3: two batches of 3, and one of 2; which example is left out is drawn anew each epoch."""
    from fedavg.client import Client
    from fedavg.engine.trainer import Trainer
    from toys import TOY

    data = toy_data(sizes=(7, 2))
    trainer = Trainer(TOY, seed=0)
    large, small = (Client(k, data.client(k), trainer, 0, 1, {}, drop_last=True) for k in (0, 1))
    assert [len(y) for _, y in large.batches(3)] == [3, 3]
    assert [len(y) for _, y in small.batches(3)] == [2]
    assert (large.steps(3), small.steps(3)) == (2, 1)
    left_out = set()
    for _epoch in range(20):
        seen = torch.cat([x for x, _ in large.batches(3)])
        rows = (data.client(0).x[:, None] == seen[None]).all(2).any(1)
        left_out |= set(np.flatnonzero(~rows.numpy()))
    assert len(left_out) > 3


def norm_net():
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


NORM = Task("norm", norm_net)


def test_batch_norm_with_a_last_batch_of_one_is_refused_before_round_1():
    plan = toy_plan(task=NORM, data=toy_data(sizes=(7, 9, 0, 5, 20)), B=4)
    message = r"batch of one example: Expected more than 1 value.*B=4.*2 of 4 clients.*1 \(9\), 3 \(5\).*use drop_last"
    with pytest.raises(TaskError, match=message):
        next(fedavg.train(plan))


@pytest.mark.parametrize("engine", ["graph", "plain"])
def test_batch_norm_trains_with_drop_last(engine):
    changes = {"task": NORM, "data": toy_data(sizes=(7, 9, 0, 5, 20)), "B": 4, "C": 1, "engine": engine}
    assert weights_after(toy_plan(drop_last=True, **changes)).isfinite().all()


def test_a_client_of_one_example_is_named_too():
    with pytest.raises(TaskError, match=r"1 of 3 clients.*1 \(1\).*leave clients of one example out"):
        next(fedavg.train(toy_plan(task=NORM, data=toy_data(sizes=(8, 1, 8)), B=4, drop_last=True)))


def with_one(value, where):
    """Toy data in which one value of client 4 (from 0) is another."""
    x, y = blobs(30, seed=1)
    parts = np.split(np.arange(30), 5)
    (x if where == "x" else y)[26] = value
    return ArrayData("one", x, y, parts, Examples(*blobs(10, seed=2)))


@pytest.mark.parametrize("value", [nan, float("inf")])
@pytest.mark.parametrize("workers", [1, 2])
def test_data_that_is_no_number_is_not_called_divergence(value, workers):
    with pytest.raises(DataError, match="client 4: x holds NaN or infinity, first in row 2"):
        list(fedavg.train(toy_plan(data=with_one(value, "x"), C=1, workers=workers)))


def test_a_rate_that_is_too_large_is_still_called_divergence():
    with pytest.raises(Diverged, match=r"client \d.*smaller lr"):
        list(fedavg.train(toy_plan(lr=1e30, C=1)))


@pytest.mark.parametrize("engine", ["auto", "plain"])
@pytest.mark.parametrize("label", [7, -3])
def test_a_label_out_of_range_names_the_client_in_a_few_lines(engine, label):
    with pytest.raises(TaskError) as caught:
        list(fedavg.train(toy_plan(data=with_one(label, "y"), C=1, B=3, engine=engine)))
    message = str(caught.value)
    assert message.startswith("client 4: 'toy' cannot be trained on x (6, 8) torch.float32, y (6,) torch.int64 from ")
    assert "out of bounds" in message
    assert str(label) in message
    assert len(message.splitlines()) == 1


def test_random_numbers_of_a_client_are_its_own():
    first, again, other = (seeds.rng(0, 1, k, "client").standard_normal(3).tolist() for k in (0, 0, 1))
    assert first == again != other
