"""What other frameworks are given is the work that we do."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "peer_scripts"))
import torch_models
import work
from fedavg.bench.workloads import ROUNDS, plan_of
from fedavg.cohorts import sample_cohort
from fedavg.setup import population_of, resolve_data
from peers import PEER_ROUNDS, write_work


@pytest.mark.parametrize("workload", ["W2", "W5", "W8"])
def test_the_file_has_the_clients_the_cohorts_and_the_training_of_the_plan(tmp_path, workload):
    numbers = write_work(tmp_path / "w.npz", workload, rounds=2)
    given, plan = work.read(str(tmp_path / "w.npz")), plan_of(workload, 2, 2)
    data = resolve_data(plan)
    assert [len(y) for _, y in given.clients] == data.sizes.tolist()
    assert given.cohorts == [sample_cohort(plan, population_of(data), round) for round in (1, 2)]
    assert np.array_equal(given.clients[3][1], data.client(3).y.numpy())
    assert (given.lr, given.epochs) == (plan.work(1).lr, plan.E)
    assert given.momentum == (0.9 if workload == "W8" else 0)
    assert given.batch == (600 if workload == "W2" else 10)
    module = torch_models.build(given.model)
    assert torch_models.trained(module) == numbers
    x, y = map(torch.from_numpy, given.clients[0])
    assert torch.isfinite(torch_models.loss(module, x, y))


@pytest.mark.parametrize("name", ["mnist-2nn", "mnist-cnn", "shakespeare-lstm", "encoder", "resnet", "adapted"])
def test_every_model_has_a_counterpart(name):
    assert isinstance(torch_models.build(name), nn.Module)


def test_every_workload_has_rounds_for_others():
    assert PEER_ROUNDS.keys() == ROUNDS.keys()
