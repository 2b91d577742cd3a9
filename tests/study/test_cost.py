"""What a round will cost: the parts by hand, and the whole beside a real run."""

import gc
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import process_time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedavg import ArrayData, Task, train
from fedavg.engine.memory import trim
from fedavg.engine.threads import one_thread
from fedavg.errors import FedAvgError
from fedavg.setup import proved_trainer, simulation
from fedavg.study import rates
from fedavg.study.cost import Held, cohorts, cost_of, makespan, peak_of, steps_of
from fedavg.study.rates import MeasuredRates, rates_of_machine
from fedavg.types import Work
from fedavg.usage import own_mb
from toys import TOY, toy_data, toy_plan

#: Of a machine on which nothing costs anything beside the training.
FREE = MeasuredRates(crowding=1.0, message_s=0.0, server_mb=100.0, worker_mb=10.0, imported_mb=1e6)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=20), st.integers(1, 5))
def test_jobs_end_no_sooner_than_they_can_and_no_later_than_one_after_another(seconds, workers):
    end = makespan(seconds, workers)
    assert end >= max(*seconds, sum(seconds) / workers) - 1e-9
    assert end <= sum(seconds) / workers + max(seconds) + 1e-9
    assert makespan(seconds, 1) == pytest.approx(sum(seconds))


@pytest.mark.parametrize(
    ("n", "epochs", "batch", "steps"), [(600, 1, 10, 60), (605, 1, 10, 61), (7, 5, 10, 5), (7, 2, float("inf"), 2)]
)
def test_steps_of_a_client(n, epochs, batch, steps):
    assert steps_of(n, Work(1, epochs, batch, 0.1)) == steps


def test_cohorts_are_those_of_the_run():
    plan = toy_plan(rounds=3, C=0.5)
    asked = [event.clients for event in train(plan) if event.round]
    found = cohorts(plan, plan.data)
    assert [len(cohort) for cohort in found] == asked
    assert all(n in (7, 12, 5, 20, 9) for cohort in found for n in cohort)


class Spinning(nn.Module):
    """Takes five milliseconds of a core for each batch, whatever else the machine does."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        began = process_time()
        while process_time() - began < 0.005:
            pass
        return self.out(x)


@pytest.mark.parametrize("workers", [1, 2])
def test_seconds_follow_from_the_clients_of_a_round(workers):
    """Both clients are asked, E=2, B=4: 2 x 5 and 2 x 2 batches of 5 ms."""
    task = Task("spinning", Spinning, eval_batch=60)
    plan = toy_plan(task=task, data=toy_data(sizes=(20, 8)), C=1, engine="plain", workers=workers)
    setup, data = simulation(plan)
    with one_thread():
        cost = cost_of(setup, data, proved_trainer(setup, data), FREE)
    expected = 0.070 if workers == 1 else 0.050
    assert expected <= cost.round_s < 1.5 * expected
    assert 0.005 / workers <= cost.evaluation_s < 0.02
    assert cost.peak_mb is not None
    assert cost.peak_mb >= 100 + 10 * workers


def test_a_client_that_takes_long_is_not_trained_to_its_end(monkeypatch):
    monkeypatch.setattr("fedavg.study.cost.LONG_S", 0.03)
    plan = toy_plan(
        task=Task("spinning", Spinning), data=toy_data(sizes=(20, 8)), C=1, E=1000, engine="plain", workers=1
    )
    setup, data = simulation(plan)
    with one_thread():
        cost = cost_of(setup, data, proved_trainer(setup, data), FREE)
    assert 35.0 <= cost.round_s < 50.0  # 7,000 batches


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is known on Linux alone")
def test_data_that_the_process_holds_before_the_prediction_counts(monkeypatch):
    monkeypatch.setattr("fedavg.study.cost.peak_mb", lambda: 0.0)  # what other tests have needed in this process
    gc.collect()
    trim()  # and what they have left
    bare = replace(FREE, imported_mb=own_mb())
    x = torch.rand(200_000, 100)  # 80 MB
    data = ArrayData("large", x, torch.zeros(len(x), dtype=torch.int64), [range(k, k + 9) for k in range(4)], None)
    setup, given = simulation(toy_plan(task=Task("wide", wide), data=data, workers=1))
    with one_thread():
        peak = cost_of(setup, given, proved_trainer(setup, given), bare).peak_mb
    assert 185 < peak < 230  # 100 of the server, 10 of the worker, 80 of the data


def test_memory_of_an_evaluation_counts_for_as_many_workers_as_there_are_chunks():
    """The toy's test set has 60 examples; 4 workers, of which 1, 2 and 4 have a chunk to judge."""
    bare = Held(at_start=0.0, loaded=0.0, training=0.0, evaluating=50.0)

    def peak(eval_batch):
        setup, data = simulation(toy_plan(task=replace(TOY, eval_batch=eval_batch), workers=4))
        return peak_of(setup, proved_trainer(setup, data), FREE, bare)

    assert peak(30) - peak(60) == pytest.approx(50)
    assert peak(15) - peak(60) == pytest.approx(150)
    assert peak(1) == peak(15)


def test_the_peak_may_be_when_the_step_is_recorded():
    setup, data = simulation(toy_plan(workers=1))
    assert peak_of(setup, proved_trainer(setup, data), FREE, Held(900.0, 0.0, 0.0, 0.0)) == 900


def wide():
    return nn.Linear(100, 2)


def test_where_memory_can_not_be_seen_none_is_predicted():
    plan = toy_plan()
    setup, data = simulation(plan)
    cost = cost_of(setup, data, proved_trainer(setup, data), MeasuredRates(1.0, 0.0, 0.0, 0.0, 0.0))
    assert cost.peak_mb is None


def test_rates_are_measured_once_for_a_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []
    monkeypatch.setattr(rates, "_measured_apart", lambda method: asked.append(method) or FREE)
    assert rates_of_machine("fork") == rates_of_machine("fork") == FREE
    assert rates_of_machine("spawn") == FREE
    assert asked == ["fork", "spawn"]
    [kept, _] = (tmp_path / "fedavg" / "rates").iterdir()
    kept.write_text("junk")
    assert rates_of_machine("fork") == rates_of_machine("spawn") == FREE
    assert len(asked) == 3
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert rates_of_machine("fork") == FREE
    assert len(asked) == 4


def test_rates_that_can_not_be_measured_are_told_of(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(FedAvgError, match="rates cannot be measured: .*No such file.*; try 'fedavg doctor'"):
        rates._measured_apart("fork")


#: In a process of its own: what other tests have left in this one would count.
DERIVED = """
import json
from fedavg.study.estimate import derive
from toys import toy_plan
print(json.dumps(derive(toy_plan())))
"""


def test_this_machine_s_rates_and_a_prediction_from_them(tmp_path):
    """Without kernels: they too are kept in the cache, and would be built anew."""
    named = {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[1]), "FEDAVG_NATIVE": "0"}
    environment = os.environ | named
    done = subprocess.run([sys.executable, "-c", DERIVED], env=environment, capture_output=True, text=True, check=True)
    derived = json.loads(done.stdout)
    [kept] = (tmp_path / "fedavg" / "rates").iterdir()
    found = MeasuredRates(**json.loads(kept.read_bytes()))
    assert found.crowding >= 1
    assert 0 < found.message_s < 1
    assert derived["estimated_s_per_round"] > 0
    if sys.platform.startswith("linux"):
        assert 100 < found.server_mb < 400
        assert found.server_mb < derived["estimated_peak_mb"] < 1.5 * (found.server_mb + 2 * found.worker_mb)
