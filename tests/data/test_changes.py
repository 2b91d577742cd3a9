"""Data that changes: what is there in which round, by hand and in whole runs."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import fedavg
from fedavg import ArrayData, Examples
from fedavg.data.changes import CHANGES, Arrivals, Changes, ChangingData, Deletions, Drift, Window
from fedavg.data.partition import parse_partition
from fedavg.engine.model import model_sha256
from fedavg.errors import DataError, PlanError
from fedavg.server import Round, train
from fedavg.specs import make
from toys import SIZES, toy_data, toy_plan


def rounds(plan):
    return [event for event in train(plan) if isinstance(event, Round)]


def test_examples_arrive():
    """A fifth at first, and all after 10 rounds; what has come stays."""
    data = ChangingData(toy_data((500, 500)), Arrivals(0.2, rounds=10), seed=3)
    sizes = np.array([data.at(round).sizes for round in range(1, 13)])
    assert abs(sizes[0].sum() - 200) < 60
    assert (np.diff(sizes, axis=0) >= 0).all()
    assert sizes[10].tolist() == sizes[11].tolist() == [500, 500]
    assert abs(sizes[5].sum() - 600) < 80, "half-way: 0.2 + 0.8 / 2"


def test_examples_are_deleted():
    data = ChangingData(toy_data((2000, 2000)), Deletions(0.1), seed=3)
    left = [data.at(round).sizes.sum() for round in (1, 2, 3, 11)]
    assert left[0] == 4000
    assert np.allclose(left, [4000, 3600, 3240, 4000 * 0.9**10], rtol=0.05)


def test_a_window_moves_on():
    first, until = Window(0.5, rounds=4, life=3).lifetimes(np.array([100]), np.random.default_rng(0))
    assert ((until - first) == 3).all()
    assert set(first.tolist()) == {1, 2, 3, 4, 5}


def test_what_a_client_has_are_those_that_are_there():
    base = toy_data()
    data = ChangingData(base, Deletions(0.3), seed=1)
    first, until = data._lifetimes
    start = 0
    for k, size in enumerate(SIZES):
        rows = [row for row in range(size) if first[start + row] <= 3 < until[start + row]]
        assert torch.equal(data.at(3).client(k).x, base.client(k).x[rows])
        assert len(data.at(3).client(k)) == data.at(3).sizes[k] == len(rows)
        start += size


def test_drift_changes_labels_of_clients_and_of_the_test_set():
    base = toy_data()
    data = ChangingData(base, Drift(3, shift=1, classes=3), seed=0)
    assert torch.equal(data.at(2).client(0).y, base.client(0).y)
    assert torch.equal(data.at(3).client(0).y, (base.client(0).y + 1) % 3)
    assert torch.equal(data.at(3).test.y, (base.test.y + 1) % 3)
    with pytest.raises(DataError, match="expected labels that are whole numbers below 2; set classes"):
        ChangingData(base, Drift(1, classes=2), seed=0).at(1).client(1)


def test_n_k_follows_in_a_run():
    plan = toy_plan(changes="arrivals:0.3:4", C=1.0, rounds=6)
    data = ChangingData(toy_data(), Arrivals(0.3, 4), plan.seed)
    assert [event.examples for event in rounds(plan)] == [data.at(t).sizes.sum() for t in range(1, 7)]


def test_a_client_whose_data_is_deleted_leaves():
    plan = toy_plan(changes="deletions:0.3", C=1.0, rounds=6)
    data = ChangingData(toy_data(), Deletions(0.3), plan.seed)
    left = [int((data.at(t).sizes > 0).sum()) for t in range(1, 7)]
    assert left[0] == 5 > left[-1]
    assert [event.clients for event in rounds(plan)] == left


def test_nobody_has_anything_left():
    with pytest.raises(DataError, match=r"in round \d+ no client has any example left"):
        rounds(toy_plan(changes="deletions:0.7", rounds=50))


def test_accuracy_falls_when_the_concept_drifts_and_comes_back():
    curve = [event.test["accuracy"] for event in rounds(toy_plan(changes="drift:9:classes=3", C=1.0, rounds=24))]
    assert curve[7] > 0.8
    assert curve[8] < 0.6
    assert curve[-1] > 0.8


@pytest.mark.parametrize("changes", ["arrivals:0.3:5", "deletions:0.1", "window:0.5:5:4", "drift:4:classes=3"])
def test_the_same_bits_on_any_number_of_workers_and_after_a_stop(tmp_path, changes):
    plan = toy_plan(changes=changes, rounds=6, checkpoint_s=0, holdout=0.2, evaluate="server,clients")
    one, three = (rounds(replace(plan, workers=workers)) for workers in (1, 3))
    assert torch.equal(one[-1].state.weights, three[-1].state.weights)
    assert [event.on_clients for event in one] == [event.on_clients for event in three]

    def stop(event):
        if event.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedavg.run(plan, tmp_path / "run", stop)
    got = fedavg.resume(tmp_path / "run", task=plan.task, data=toy_data())
    assert got.summary.model_sha256 == model_sha256(one[-1].state.weights)


@dataclass(frozen=True)
class HalfAway(Changes):
    """Every second example is deleted after round 2."""

    def lifetimes(self, sizes, rng):
        until = np.where(np.arange(sizes.sum()) % 2, 3, 100)
        return np.ones(len(until)), until


def test_changes_of_one_s_own():
    events = rounds(toy_plan(changes=HalfAway(), C=1.0, rounds=3))
    assert [event.examples for event in events] == [53, 53, 27]


@pytest.mark.parametrize("spec", ["arrivals", "deletions:0.5", "window:0.1:5:2", "drift:3:2"])
def test_its_text_reads_back(spec):
    assert str(make(spec, Changes)) == spec


def test_every_preset_is_tried():
    assert set(CHANGES) == {"arrivals", "deletions", "window", "drift"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("arrivals:0", "changes arrivals: start is 0; expected a share above 0"),
        ("deletions:1", "changes deletions: rate is 1; expected a number above 0 and below 1"),
        ("window:life=0", "changes window: life is 0; expected 1 or more"),
        ("drift:5:10", "changes drift: shift is 10; expected no multiple of classes"),
    ],
)
def test_a_bad_setting_is_refused(spec, message):
    with pytest.raises(PlanError, match=message):
        make(spec, Changes)


def test_labels_go_with_time_zones():
    labels = np.repeat(np.arange(10), 20)
    parts = parse_partition("zoned:2").deal(labels, 6, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    for k, part in enumerate(parts):
        assert set(labels[part]) <= (set(range(5)) if k % 2 == 0 else set(range(5, 10)))
    with pytest.raises(PlanError, match="zoned:11 with 10 labels and 20 clients: expected from 1 zone"):
        parse_partition("zoned:11").deal(labels, 20, np.random.default_rng(0))


def test_examples_without_changes_are_the_data_itself():
    data = ArrayData("one", [[1.0]], [0], [[0]], Examples(torch.ones(1, 1), torch.zeros(1)))
    assert data.at(7) is data
