"""The workloads are what their descriptions say."""

import numpy as np
import pytest
import torch

from fedavg.bench.models import ADAPTED, ENCODER, RESNET
from fedavg.bench.reference import plain_rounds
from fedavg.bench.workloads import ROUNDS, plan_of
from fedavg.engine.model import Model
from fedavg.setup import resolve_data
from toys import toy_plan


@pytest.mark.parametrize(
    ("workload", "clients", "least", "most"),
    [("W5", 20, 20, 60), ("W6", 20, 30, 90), ("W7", 100, 101, 996), ("W9", 20, 20, 60), ("W10", 10_000, 1, 5)],
)
def test_clients_have_the_sizes_that_are_said(workload, clients, least, most):
    sizes = resolve_data(plan_of(workload, 3, 1)).sizes
    assert len(sizes) == clients
    assert least <= sizes.min() <= sizes.max() <= most
    assert len(np.unique(sizes)) > 4 or workload == "W10"


def test_of_the_adapted_transformer_only_the_adapters_are_trained():
    model = Model(ADAPTED, seed=0)
    assert sum(p.numel() for p in model.module.parameters()) == pytest.approx(4.9e6, rel=0.05)
    assert {name.split(".")[-2] for name in model.parameters} == {"down", "up"}
    assert len(model.trainable) == 6 * 8 * (256 + 768 + 256 + 256) == 73_728


@pytest.mark.parametrize(("task", "shape"), [(ENCODER, (2, 100, 32)), (ADAPTED, (2, 100, 32)), (RESNET, (2, 10))])
def test_the_models_give_logits_by_class(task, shape):
    x = torch.rand(2, 3, 32, 32) if task is RESNET else torch.randint(0, 100, (2, 32))
    assert Model(task, seed=0).module(x).shape == shape


def test_every_workload_has_rounds_that_are_warm():
    assert all(rounds > 8 for rounds in ROUNDS.values())


def test_the_reference_times_every_round_of_a_plan():
    rounds = list(plain_rounds(toy_plan(rounds=3)))
    assert len(rounds) == 3
    assert all(0 < round.seconds < 60 for round in rounds)
