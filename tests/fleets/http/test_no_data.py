"""A server without any data, and one whose data cannot be judged: what it says before it listens."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedavg import ArrayData, Plan, run
from fedavg.cli.fleet import _plan
from fedavg.errors import DataError, PlanError, TaskError
from fedavg.fleets.http.server.rounds import Rules
from fedavg.programs.servable import check_data_is_named, own_data, resolve_served
from fleet_peers import DATA, NUMBERS, fleet_plan, serving, until

PARTS = [DATA.client(k) for k in range(len(DATA))]
X, Y = (torch.cat([getattr(part, name) for part in PARTS]) for name in "xy")
SHARES = np.split(np.arange(len(Y)), [5, 15])
EMPTY = ArrayData("empty", X, Y, SHARES, replace(PARTS[0], x=PARTS[0].x[:0], y=PARTS[0].y[:0]))


def resolved(**changes):
    plan = fleet_plan(**changes)
    return resolve_served(plan, own_data(plan), Rules())


def test_a_server_trains_without_any_data(tmp_path):
    with serving(tmp_path, fleet_plan(rounds=1, data="none"), minimum=1, linger_s=60) as server:
        (peer,), (offer,) = server.cohort(10)
        assert peer.upload(offer, peer.frame(offer, np.ones(NUMBERS), 10.0)).json["accepted"]
        until(lambda: peer.poll(1.0).json["type"] == "done")
        peer.close()
    (row,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (row["test"], row["clients"], row["train_loss"]) == (None, 1, 0.5)


def test_without_data_devices_judge_if_they_hold_examples_out():
    setup = resolved(data="none", holdout=0.2)
    assert (setup.judged_by_server, setup.judged_by_clients, setup.population) == (False, True, None)
    assert resolved(data="none", clients=7).population.count == 7
    assert not resolved(data="none").judged_by_clients


def test_a_server_can_not_judge_on_data_that_it_does_not_have():
    with pytest.raises(PlanError, match="no test set"):
        resolved(data="none", evaluate="server")
    with pytest.raises(PlanError, match="nothing is evaluated"):
        resolved(data="none", target=0.9)


def test_a_simulation_asks_for_data():
    with pytest.raises(DataError, match="a simulation needs data"):
        run(Plan(data="none", rounds=1))


def test_a_task_of_ones_own_does_not_silently_take_the_default_data(tmp_path):
    (tmp_path / "plan.toml").write_text('task = "toys:TOY"\n')
    with pytest.raises(PlanError, match="data: got none with task 'toys:TOY'; expected data = 'none'"):
        _plan(str(tmp_path / "plan.toml"), (), {})
    assert _plan(str(tmp_path / "plan.toml"), ("data=none",), {}).data == "none"
    check_data_is_named({"task": "mnist-2nn"})  # a preset has its data


def test_what_the_server_will_judge_is_tried_before_it_listens():
    with pytest.raises(TaskError, match=r"cannot judge the test set of data 'mnist': .*data = 'none'"):
        resolved(data="mnist", clients=3)
    with pytest.raises(DataError, match="its test set is empty"):
        resolved(data="test_no_data:EMPTY")
