"""Who judges the model, and what becomes of what they find."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedavg
from fedavg import ArrayData, Examples, Task
from fedavg.algorithms.fedavg import FedAvg
from fedavg.data import HeldOut
from fedavg.data.own import from_clients
from fedavg.engine.trainer import Trainer
from fedavg.errors import DataError, PlanError, TaskError
from fedavg.metrics import report
from fedavg.runlog.plot import panels, plot_run
from fedavg.runlog.rundir import RunDir
from toys import TOY, blobs, toy_data, toy_plan


def rounds(plan):
    return [event for event in fedavg.train(plan) if event.round]


def without_test(data):
    """The same clients, and no test set."""
    parts = [data.client(k) for k in range(len(data))]
    ends = np.cumsum(data.sizes)[:-1]
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    return ArrayData("no test", x, y, np.split(np.arange(len(y)), ends), None)


# By clients


def test_clients_judge_on_what_they_hold_out_by_hand():
    plan = toy_plan(evaluate="server,clients", holdout=0.3, rounds=2)
    *_, last = rounds(plan)
    held = HeldOut(toy_data(), 0.3, plan.seed)
    able = [int(k) for k in np.flatnonzero(held.held_sizes)]
    trainer = Trainer(TOY, plan.seed)
    trainer.load(last.state.weights)
    each = [report(TOY.judged_by, trainer.evaluate(held.held(k)))["accuracy"] for k in able]
    sizes = held.held_sizes[able]
    found = last.on_clients
    assert found["clients"] == len(able)
    assert found["metrics"]["accuracy"] == pytest.approx(float(np.average(each, weights=sizes)))
    assert found["spread"]["accuracy"]["variance"] == pytest.approx(float(np.var(each)))
    assert found["spread"]["accuracy"]["p10"] == pytest.approx(float(np.percentile(each, 10)))
    assert found["spread"]["accuracy"]["worst_decile"] == min(each)
    assert last.test is not None


def test_what_clients_find_does_not_depend_on_the_number_of_workers():
    plans = [toy_plan(evaluate="clients", holdout=0.3, eval_clients=3, workers=n) for n in (1, 2, 3)]
    first, *others = [[event.on_clients for event in rounds(plan)] for plan in plans]
    assert all(other == first for other in others)
    assert [found["clients"] for found in first] == [3, 3, 3, 3]


def test_the_clients_that_judge_are_drawn_by_the_seed_anew_each_time():
    from fedavg.fleets.worker import judges
    from fedavg.setup import simulation

    setup, _ = simulation(toy_plan(evaluate="clients", holdout=0.3, eval_clients=2))
    able = np.arange(40)
    drawn = [judges(setup, round, able) for round in range(1, 6)]
    assert drawn == [judges(setup, round, able) for round in range(1, 6)]
    assert len({tuple(each) for each in drawn}) == 5
    assert judges(setup, 1, np.arange(2)) == [0, 1]


def test_evaluation_changes_nothing_that_is_learned():
    ways = [{}, {"evaluate": "none"}, {"evaluate": "clients"}, {"evaluate": "server,clients", "eval_every": 2}]
    weights = [rounds(toy_plan(holdout=0.3, **way))[-1].state.weights for way in ways]
    assert all(torch.equal(other, weights[0]) for other in weights[1:])


def test_under_secure_aggregation_only_the_sum_over_clients_is_known():
    plain, masked = (
        rounds(toy_plan(evaluate="clients", holdout=0.3, rounds=1, C=1, secagg=secagg))[0].on_clients
        for secagg in ("none", "complete:8:100")
    )
    assert masked["spread"] == {}
    assert masked["clients"] == plain["clients"]
    assert masked["metrics"]["loss"] == pytest.approx(plain["metrics"]["loss"], rel=1e-3)
    assert masked["metrics"]["accuracy"] == pytest.approx(plain["metrics"]["accuracy"], abs=0.05)


def test_masked_sums_are_those_of_the_same_weights(tmp_path):
    """The weights differ by the rounding of masked training, so the sums are compared on one model."""
    from fedavg.fleets import LocalFleet
    from fedavg.setup import resolve

    found = []
    for secagg in ("none", "complete:8:100"):
        plan, fleet = toy_plan(evaluate="clients", holdout=0.3, secagg=secagg, workers=1), LocalFleet()
        weights = fleet.start(resolve(plan, fleet.open(plan), fleet.test))
        found.append(fleet.evaluate_on_clients(weights, 1))
        fleet.close()
    assert found[1].metrics == pytest.approx(found[0].metrics, rel=1e-8)
    assert found[0].spread
    assert not found[1].spread


def test_a_private_run_does_not_let_clients_judge():
    stages = ("weigh:equal", "clip:1.0", "noise:1.0")
    with pytest.raises(PlanError, match="evaluation by clients: what clients find .* is a release without noise"):
        rounds(toy_plan(evaluate="clients", holdout=0.3, stages=stages))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluate": "clients"}, "no client holds examples out; set holdout"),
        ({"eval_clients": 3}, "eval_clients: got 3, but no client judges the model"),
        ({"evaluate": "none", "eval_every": 3}, "eval_every: got 3, but nothing is evaluated"),
        ({"evaluate": "none", "metrics": "f1:3"}, "metrics: got .*f1:3.*, but nothing is evaluated"),
        ({"evaluate": "nobody"}, "evaluate: got 'nobody'; expected server, clients, 'server,clients', none"),
    ],
)
def test_an_evaluation_that_nobody_can_do_is_refused(options, message):
    with pytest.raises(PlanError, match=message):
        rounds(toy_plan(**options))


# Without a test set


def test_a_run_without_a_test_set_trains_and_says_so(tmp_path):
    from fedavg.cli.report import summary_rows

    result = fedavg.run(toy_plan(data=without_test(toy_data())), tmp_path / "run")
    assert result.summary.status == "finished"
    assert result.metrics == {}
    assert len(result.rounds) == 0
    assert len(result.train_loss) == 4
    assert ("evaluated", "not at all: the data has no test set, and no client holds examples out") in summary_rows(
        result.summary, None
    )
    plot_run(result.plan, result.goal, RunDir(tmp_path / "run").rows(), tmp_path / "curve.png")


def test_without_a_test_set_clients_judge_if_they_hold_something_out():
    result = fedavg.run(toy_plan(data=without_test(toy_data()), holdout=0.3, target="accuracy=0.01"))
    assert result.summary.status == "target reached"
    assert result.accuracy.tolist() == result.client_metrics["accuracy"].tolist()
    assert {"accuracy.p10", "accuracy.p50", "accuracy.p90", "accuracy.worst_decile", "loss.variance"} <= set(
        result.client_metrics
    )


def test_asking_the_server_without_a_test_set_is_refused():
    with pytest.raises(PlanError, match="evaluate: got 'server', but the data has no test set"):
        rounds(toy_plan(data=without_test(toy_data()), evaluate="server"))


def test_a_test_set_without_examples_is_refused():
    """Before, nothing was evaluated, and nobody was told."""
    data = toy_data()
    with pytest.raises(DataError, match="its test set is empty; expected examples, or None"):
        rounds(toy_plan(data=replace_test(data, Examples(data.test.x[:0], data.test.y[:0]))))


def test_clients_of_one_example_leave_no_test_set_and_no_error():
    """Each keeps its only example; before, the empty test set was an IndexError."""
    data = from_clients([(np.ones((1, 8), np.float32) * k, [k % 3]) for k in range(4)])
    assert data.test is None
    result = fedavg.run(toy_plan(data=data, C=1, holdout=0.5))
    assert result.summary.status == "finished"
    with pytest.raises(PlanError, match="no client holds examples out"):
        rounds(toy_plan(data=data, holdout=0.5, evaluate="clients"))


# What is wrong with the data is told


def test_nan_in_the_test_set_is_told_before_round_1():
    data = toy_data()
    x = data.test.x.clone()
    x[7, 3] = float("nan")
    spoilt = toy_plan(data=replace_test(data, Examples(x, data.test.y)))
    with pytest.raises(DataError, match="the test set: x holds NaN or infinity, first in row 7"):
        next(iter(fedavg.train(spoilt)))


def replace_test(data, test):
    parts = [data.client(k) for k in range(len(data))]
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    return ArrayData(data.name, x, y, np.split(np.arange(len(y)), np.cumsum(data.sizes)[:-1]), test)


class SpoiltHoldout(fedavg.FederatedData):
    """Client 3's examples to judge on hold infinity."""

    def __init__(self, data):
        self._data, self.name = data, data.name

    sizes = property(lambda self: self._data.sizes)
    held_sizes = property(lambda self: np.full(len(self._data), 2))
    fingerprint = property(lambda self: self._data.fingerprint)

    def client(self, k):
        return self._data.client(k)

    def held(self, k):
        x, y = blobs(2, seed=k)
        return Examples(x / 0 if k == 3 else x, y)


@pytest.mark.parametrize("workers", [1, 2])
def test_infinity_in_what_a_client_holds_out_names_the_client(workers):
    with pytest.raises(DataError, match="client 3: x holds NaN or infinity, first in row 0"):
        rounds(toy_plan(data=SpoiltHoldout(toy_data()), workers=workers))


# What is measured reaches everyone


@dataclass(frozen=True)
class Measuring(FedAvg):
    metrics: ClassVar = ("train_loss", "grad_norm")

    def client_update(self, client, weights, work):
        update = super().client_update(client, weights, work)
        return replace(update, metrics={**update.metrics, "grad_norm": float(client.n)})


def test_an_algorithm_s_own_metric_reaches_the_round_and_the_record(tmp_path, monkeypatch):
    from fedavg.algorithms import ALGORITHMS

    monkeypatch.setitem(ALGORITHMS, "measuring", Measuring)
    result = fedavg.run(toy_plan(algorithm="measuring", C=1, rounds=1), tmp_path / "run")
    row = json.loads((tmp_path / "run/metrics.jsonl").read_text())
    sizes = toy_data().sizes
    assert row["metrics"] == {"grad_norm": pytest.approx(float((sizes**2).sum() / sizes.sum()))}
    assert row["train_loss"] == result.train_loss[0]
    assert "metrics" not in json.loads(json.dumps(rows_of(tmp_path / "plain")[0])), "nothing to tell, nothing told"


def rows_of(path):
    fedavg.run(toy_plan(rounds=1), path)
    return RunDir(path).rows()


def test_metrics_other_than_accuracy_reach_result_summary_and_picture(tmp_path):
    task = Task("r", lambda: nn.Linear(8, 1), loss=lambda o, y: F.mse_loss(o[:, 0], y.float()),
                metrics={"loss": "loss", "mae": lambda o, y: (o[:, 0] - y).abs()})  # fmt: skip
    result = fedavg.run(toy_plan(task=task, lr=0.01, eval_every=2), tmp_path / "run")
    assert result.rounds.tolist() == [2, 4]
    assert {name: len(values) for name, values in result.metrics.items()} == {"loss": 2, "mae": 2}
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["metrics"]["loss"] == {"final": result.loss[-1], "best": result.loss.min()}
    assert summary["metrics"]["mae"] == {"final": result.metrics["mae"][-1]}, "it is not known which way is better"
    assert summary["final_accuracy"] is None
    assert panels(result.goal, RunDir(tmp_path / "run").rows()) == ["loss", "mae"]
    plot_run(result.plan, result.goal, RunDir(tmp_path / "run").rows(), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 5000
    with pytest.raises(TaskError, match=r"this run has no accuracy; expected one of result\.metrics: loss, mae"):
        _ = result.accuracy
