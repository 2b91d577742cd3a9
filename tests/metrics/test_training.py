"""What clients measure in training has the form of metrics: sums that add up, and a function of the sums."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedavg
from fedavg import Accuracy, FedAvg, MacroF1, Measure, Task
from fedavg.client_path import Message
from fedavg.engine.trainer import Trainer
from fedavg.errors import FleetError, PlanError, TaskError
from fedavg.metrics import report
from fedavg.metrics.training import (
    Average,
    masked_bounds,
    masked_numbers,
    measures_by_name,
    names_sent,
    numbers_sent,
    sums_over,
    unmasked_sums,
)
from fedavg.runlog.plot import plot_run
from fedavg.runlog.rundir import RunDir
from fedavg.secagg.ring import DecodedSum, Encoding
from fedavg.types import Examples
from toys import TOY, toy_data, toy_plan


class Clients(Measure):
    """How many clients there were, and how many examples the largest half had: no predictions are needed for it."""

    name, size, higher_is_better = "large", 2, True

    def value(self, sums):
        return float(sums[0] / sums[1])


@dataclass(frozen=True)
class Judging(FedAvg):
    """Clients judge the model that they were sent, on what they train on."""

    name = "judging"
    metrics = ("train_loss", MacroF1(3), Clients())

    def client_update(self, client, weights, work):
        client.load(weights)
        found = {"f1": client.sums(MacroF1(3)), "large": [float(client.n > 8), 1]}
        update = super().client_update(client, weights, work)
        return replace(update, metrics={**update.metrics, **found})


def rounds(plan):
    return [event for event in fedavg.train(plan) if event.round]


def pooled_examples():
    data = toy_data()
    parts = [data.client(k) for k in range(len(data))]
    return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def test_the_value_over_a_cohort_is_that_of_all_its_examples_not_a_mean_over_clients():
    first, *_ = rounds(toy_plan(algorithm=Judging(), C=1, rounds=1))
    trainer, metrics = Trainer(TOY, 0), {"f1": MacroF1(3)}
    expected = report(metrics, trainer.evaluate(pooled_examples(), metrics))["f1"]
    data = toy_data()
    each = [report(metrics, trainer.evaluate(data.client(k), metrics))["f1"] for k in range(len(data)) if data.sizes[k]]
    mean = float(np.average(each, weights=data.sizes[data.sizes > 0]))
    assert first.metrics["f1"] == pytest.approx(expected, rel=1e-12)
    assert abs(mean - expected) > 0.01, "a mean of the clients' values is another number"
    assert first.metrics["large"] == 3 / 5, "12, 20 and 9 of the five that have any"


@pytest.mark.parametrize("secagg", ["none", "complete:8:100"])
def test_it_does_not_depend_on_workers_and_masks_hide_nothing_but_single_clients(secagg):
    one, two = (rounds(toy_plan(algorithm=Judging(), workers=n, C=1, rounds=1, secagg=secagg)) for n in (1, 2))
    plain = rounds(toy_plan(algorithm=Judging(), C=1, rounds=1))
    assert one[0].metrics == two[0].metrics
    assert one[0].metrics == pytest.approx(plain[0].metrics, rel=1e-8)
    assert one[0].train_loss == pytest.approx(plain[0].train_loss, rel=1e-8)


def test_it_reaches_record_and_result(tmp_path):
    result = fedavg.run(toy_plan(algorithm=Judging(), rounds=3), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert result.training["f1"].tolist() == [row["metrics"]["f1"] for row in rows]
    assert result.training["train_loss"].tolist() == result.train_loss.tolist()
    assert sorted(result.training) == ["f1", "large", "train_loss"]


def test_what_is_measured_and_what_is_named_must_agree():
    @dataclass(frozen=True)
    class Forgetful(FedAvg):
        name = "forgetful"

        def client_update(self, client, weights, work):
            update = super().client_update(client, weights, work)
            return replace(update, metrics={**update.metrics, "grad_norm": 1.0})

    with pytest.raises(TaskError, match=r"gave the metrics \['grad_norm', 'train_loss'\]; expected \['train_loss'\]"):
        rounds(toy_plan(algorithm=Forgetful(), rounds=1))
    measures = measures_by_name(("train_loss", MacroF1(3)))
    for wrong in ({"train_loss": [1.0, 2.0], "f1": [0.0] * 9}, {"train_loss": 1.0, "f1": 0.5},
                  {"train_loss": 1.0, "f1": [1.0]}):  # fmt: skip
        with pytest.raises(TaskError, match="client_update gave"):
            numbers_sent(measures, wrong)


# The form, by hand

MEASURES = measures_by_name(("train_loss", Clients()))


def message(weight, loss, large):
    sent = numbers_sent(MEASURES, {"train_loss": loss, "large": [large, torch.tensor(1)]})
    return Message(b"", weight, sent)


def test_sums_of_two_clients_by_hand():
    assert names_sent(MEASURES) == ["train_loss", "large.0", "large.1"]
    one, other = message(10.0, 2.0, 1.0), message(30.0, 1.0, 0.0)
    sums = sums_over(MEASURES, [one, other])
    assert {name: each.tolist() for name, each in sums.items()} == {"train_loss": [50.0, 40.0], "large": [1.0, 2.0]}
    assert report(MEASURES, sums) == {"train_loss": 1.25, "large": 0.5}
    assert sums_over(MEASURES, []) == {}


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(-50, 50), st.integers(0, 9)), min_size=2, max_size=9))
def test_masked_sums_are_the_plain_ones(clients):
    sent = [message(float(weight), loss, float(large)) for weight, loss, large in clients]
    encoding = Encoding(len(sent), 0, clip=1.0, weight_cap=600.0, metrics=tuple(names_sent(MEASURES)), bits=64)
    rings = [encoding.encode(np.empty(0), each.weight, masked_numbers(MEASURES, each)).ring for each in sent]
    decoded = encoding.decode(np.sum(rings, axis=0, dtype=encoding.dtype), len(sent))
    plain, masked = sums_over(MEASURES, sent), unmasked_sums(MEASURES, decoded)
    for name in MEASURES:
        assert masked[name].tolist() == pytest.approx(plain[name].tolist(), rel=1e-9, abs=1e-6)
    low, high = min(clients, key=lambda c: c[2])[2], max(clients, key=lambda c: c[2])[2]
    bounds = masked_bounds(MEASURES, {"large.0": (low, high), "train_loss": (-50.0, 50.0), "other": (0, 0)}, decoded)
    assert set(bounds) == {"large.0", "train_loss"}
    assert all(bounds[name][0] - 1e-6 <= decoded.metrics[name] <= bounds[name][1] + 1e-6 for name in bounds)


def test_a_sum_that_masks_can_not_hold_is_refused_not_cut():
    with pytest.raises(FleetError, match=r"large\.0 of this client is 2e\+10, beyond 2\^31"):
        masked_numbers(MEASURES, message(1.0, 0.0, 2e10))


def test_a_total_without_weight_has_no_bounds_to_break():
    empty = DecodedSum(np.empty(0), 0.0, dict.fromkeys(names_sent(MEASURES), 0.0), 2, 0, 0)
    assert masked_bounds(MEASURES, {"large.0": (0.0, 1.0)}, empty) == {"large.0": (0.0, 0.0)}


def test_an_average_says_which_way_is_better_if_its_name_does():
    assert measures_by_name(("train_loss", "rho")) == {
        "train_loss": Average("train_loss", False),
        "rho": Average("rho"),
    }


# Watched by them


def test_a_run_stops_at_what_clients_find_though_the_server_judges_too():
    whole = fedavg.run(toy_plan(evaluate="server,clients", holdout=0.3, rounds=6))
    wanted = float(whole.client_metrics["loss"][2]) * 1.0001
    first = next(i for i, value in enumerate(whole.client_metrics["loss"]) if value <= wanted)
    assert not whole.loss[first] <= wanted or first == 0 or whole.loss[first] != whole.client_metrics["loss"][first]
    stopped = fedavg.run(toy_plan(evaluate="server,clients", holdout=0.3, rounds=6, target=f"clients.loss={wanted!r}"))
    assert (stopped.summary.status, stopped.summary.rounds) == ("target reached", first + 1)
    assert stopped.summary.metric == "clients.loss"
    assert stopped.summary.rounds_to_target is not None


@pytest.mark.parametrize(
    ("target", "curve"),
    [
        ("clients.accuracy.p10", lambda result: result.client_metrics["accuracy.p10"]),
        ("training.f1", lambda result: result.training["f1"]),
    ],
)
def test_a_run_stops_at_the_spread_over_clients_and_at_what_cohorts_measure(tmp_path, target, curve):
    options = {"algorithm": Judging(), "evaluate": "server,clients", "holdout": 0.3, "rounds": 6}
    values = curve(fedavg.run(toy_plan(**options)))
    wanted = float(values[:4].max())
    first = int(np.argmax(values >= wanted))
    result = fedavg.run(toy_plan(**options, target=f"{target}={wanted!r}"), tmp_path / "run")
    assert (result.summary.status, result.summary.rounds) == ("target reached", first + 1)
    plot_run(result.plan, result.goal, RunDir(tmp_path / "run").rows(), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 5000


class Stop(Exception):
    pass


def test_patience_with_what_clients_find_goes_on_after_a_stop(tmp_path):
    plan = toy_plan(evaluate="server,clients", holdout=0.3, rounds=30, lr=1e-6, patience="clients.accuracy=3",
                    checkpoint_s=0)  # fmt: skip
    whole = fedavg.run(plan)
    assert whole.summary.status == "no improvement"

    def stop(event):
        if event.round == 2:
            raise Stop

    with pytest.raises(Stop):
        fedavg.run(plan, tmp_path / "run", stop)
    resumed = fedavg.resume(tmp_path / "run", task=plan.task, data=plan.data)
    assert resumed.summary.rounds == whole.summary.rounds
    assert resumed.summary.status == "no improvement"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "clients.accuracy=0.5"}, "target: got clients.accuracy=0.5, but no client judges the model"),
        (
            {"patience": "clients.f1=5"},
            "patience: the task has no metric 'clients.f1'; expected one of accuracy, loss,",
        ),
        ({"target": "clients.accuracy.p11=0.5"}, "the task has no metric 'clients.accuracy.p11'"),
        ({"target": "training.grad_norm=1"}, "no metric 'training.grad_norm'; .* training.train_loss"),
        (
            {"target": "clients.accuracy.p10=0.5", "evaluate": "clients", "holdout": 0.3, "secagg": "complete:8:100"},
            "under secure aggregation nobody knows a spread over clients",
        ),
        (
            {"target": "training.train_loss=0.1", "stages": ("weigh:equal", "clip:1.0", "noise:1.0")},
            "in a private run clients' own numbers stay with them",
        ),
    ],
)
def test_a_run_does_not_wait_for_what_nobody_will_tell(options, message):
    with pytest.raises(PlanError, match=message):
        next(iter(fedavg.train(toy_plan(**options))))


class Sometimes(fedavg.Metric):
    """Known only where class 0 is predicted at all."""

    name, size, higher_is_better = "sometimes", 2, True

    def sums(self, output, y):
        return [((output.argmax(1) == 0) & (y == 0)).sum(), (output.argmax(1) == 0).sum() * 0]

    def value(self, sums):
        return float(sums[0] / sums[1])


def test_a_metric_that_is_no_number_ends_no_run(tmp_path):
    """Before, a target on it was a TypeError after the first round, and so was the summary at the end."""
    task = Task("t", TOY.build, metrics=[Accuracy(), Sometimes()])
    result = fedavg.run(toy_plan(task=task, rounds=6, patience="sometimes=3"), tmp_path / "run")
    assert result.summary.status == "no improvement"
    assert result.summary.rounds == 4
    assert result.summary.metrics["sometimes"] == {}
    json.loads((tmp_path / "run/summary.json").read_text(), parse_constant=pytest.fail)


@dataclass(frozen=True)
class After(FedAvg):
    name = "after"
    metrics = ("train_loss", Accuracy())

    def client_update(self, client, weights, work):
        update = super().client_update(client, weights, work)
        return replace(update, metrics={**update.metrics, "accuracy": client.sums(Accuracy())})


def test_a_client_judges_at_the_weights_that_it_has_now():
    """With one client, the new model is the client's own."""
    data = toy_data((40,))
    (event,) = rounds(toy_plan(algorithm=After(), data=data, rounds=1, C=1))
    trainer = Trainer(TOY, 0)
    before = report(TOY.judged_by, trainer.evaluate(data.client(0)))["accuracy"]
    trainer.load(event.state.weights)
    assert event.metrics["accuracy"] == report(TOY.judged_by, trainer.evaluate(data.client(0)))["accuracy"] != before
