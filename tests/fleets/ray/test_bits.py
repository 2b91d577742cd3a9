"""The model on Ray is that of the local fleet, bit for bit, whatever the nodes and the parts of the plan."""

import pytest
import torch

from fedavg import Round, run, train
from fedavg.study.evaluate import evaluate
from fedavg.study.personalise import personalise
from ray_clusters import fleet_of, ray_cluster
from toys import TOY, toy_data, toy_plan

SIZES = (7, 12, 0, 8, 20, 9, 31, 5, 14, 6)


def plan(**changes):
    return toy_plan(**{"data": toy_data(SIZES), "C": 0.6, "rounds": 3, **changes})


def course(plan, fleet="local"):
    """All that a run gives that does not depend on the clock."""
    events = list(train(plan, fleet))
    rows = [
        (
            e.clients,
            e.examples,
            e.train_loss,
            e.bytes_up,
            e.bytes_down,
            e.test,
            e.train,
            e.metrics,
            e.on_clients,
            e.world,
        )
        for e in events
        if isinstance(e, Round)
    ]
    return rows, events[-1].state.weights


def assert_same(plan, fleet):
    (rows, weights), (expected_rows, expected) = course(plan, fleet), course(plan)
    assert torch.equal(weights, expected)
    assert rows == expected_rows


#: Clients come and go, fail and are late; the data changes, and the sampler looks back.
WORLD = {
    "world": "markov:0.02:0.02:lognormal:speed=2.0:up=0.001:dropout=0.2",
    "closing": "deadline:25:over=1.5:minimum=0.2:needs=0.5",
    "sampling": "corrected",
    "changes": "arrivals:0.5:3",
}
#: Each has several of the parts that a simulation may have; to start a worker takes longer than to run all its clients.
PLANS = {
    "one client in some rounds and none in others, with noise": {
        "sampling": "poisson", "C": 0.12, "rounds": 6, "B": "inf",
        "stages": "clip:1.0,weigh:equal,noise:1.1",
    },
    "what clients keep and residuals on both ways": {
        "codec": "stc:0.1", "downlink": "stc:0.1", "optimizer": "sgd:momentum=0.9:keep=true", "holdout": 0.3,
        "evaluate": "clients", "eval_clients": 4,
    },
    "asynchronous": {"algorithm": "fedbuff:3", "rounds": 5, "sampling": "choice:8", "eval_train": True},
    "secure aggregation": {"secagg": "complete:10:40", "holdout": 0.2, "evaluate": "server,clients"},
    "robust rules": {"reducer": "trimmed:0.2", "pre": ["nnm:0.2"], "C": 0.3, "attack": "alie", "attackers": 0.2},
    "single updates": {"reducer": "median", "attack": "signflip", "attackers": "3,6"} | WORLD,
}  # fmt: skip
#: What the plans above have too, in other company.
MORE_PLANS = {
    "control variates": {"algorithm": "scaffold", "holdout": 0.3, "evaluate": "clients", "eval_clients": 4},
}


@pytest.mark.parametrize("name", PLANS)
def test_the_same_bits_as_the_local_fleet(name, cluster):
    assert_same(plan(**PLANS[name]), fleet_of(cluster, workers_per_node=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_PLANS)
def test_the_same_bits_as_the_local_fleet_with_more_plans(name, cluster):
    assert_same(plan(**MORE_PLANS[name]), fleet_of(cluster, workers_per_node=1))


def test_fine_tuning_gives_the_same(cluster, tmp_path):
    given = {"task": TOY, "data": toy_data(SIZES)}
    run(plan(holdout=0.3, rounds=1), tmp_path / "run")
    there = personalise(tmp_path / "run", epochs=2, fleet=fleet_of(cluster, workers_per_node=1), **given)
    assert there == personalise(tmp_path / "run", epochs=2, **given)


@pytest.mark.slow  # fine-tuning evaluates on the same workers
def test_evaluation_gives_the_same(cluster, tmp_path):
    given = {"task": TOY, "data": toy_data(SIZES)}
    run(plan(holdout=0.3, rounds=1), tmp_path / "run")
    there = evaluate(tmp_path / "run", fleet=fleet_of(cluster, workers_per_node=1), **given)
    assert there == evaluate(tmp_path / "run", **given)


@pytest.mark.slow  # all other tests run on two nodes
def test_the_same_bits_on_1_2_and_3_nodes():
    expected = course(plan(workers=1))
    with ray_cluster(2) as cluster:
        for more in (0, 1, 1):
            if more:
                cluster.more(more)
            rows, weights = course(plan(), fleet_of(cluster))
            assert torch.equal(weights, expected[1])
            assert rows == expected[0]
