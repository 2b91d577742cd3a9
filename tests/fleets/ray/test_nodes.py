"""What the nodes of a cluster must have: the same data, wherever they have it from, and the code that a plan names."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fedavg import Plan, RayFleet, train
from fedavg.cli import cli
from fedavg.errors import FleetError, PlanError
from ray_clusters import fleet_of, ray_cluster
from toys import TOY

OWN_CODE = Path(__file__).parents[3] / "examples/own_package/src"


@pytest.fixture
def data_folders(tmp_path, monkeypatch):
    """Three folders for FEDAVG_DATA, of which the last holds something else; the first is this process's."""
    folders = [tmp_path / name for name in ("ours", "same", "other")]
    for folder, seed in zip(folders, (1, 1, 2), strict=True):
        folder.mkdir()
        np.save(folder / "points.npy", np.random.default_rng(seed).standard_normal((40, 8)).astype(np.float32))
    monkeypatch.setenv("FEDAVG_DATA", str(folders[0]))
    return folders


def plan(**changes):
    return Plan(**{"task": TOY, "data": "ray_clusters:FromDataFolder", "C": 1, "B": 5, "rounds": 2, **changes})


def test_nodes_load_named_data_from_their_own_folders(data_folders, monkeypatch):
    ours, same, other = data_folders
    *_, expected = train(plan())
    monkeypatch.setenv("FEDAVG_DATA", str(same))
    with ray_cluster(1) as cluster:
        monkeypatch.setenv("FEDAVG_DATA", str(ours))
        *_, last = train(plan(), fleet_of(cluster))
        assert torch.equal(last.state.weights, expected.state.weights)

        monkeypatch.setenv("FEDAVG_DATA", str(other))
        added = cluster.more(1)
        monkeypatch.setenv("FEDAVG_DATA", str(ours))
        with pytest.raises(
            FleetError, match="node .*: fingerprint is '.*'; expected '.*', as where the run was started"
        ):
            list(train(plan(), fleet_of(cluster)))
        cluster.remove_node(added)


@pytest.mark.slow
def test_a_node_that_comes_later_with_other_data_is_left_out(data_folders, monkeypatch, caplog):
    ours, _, other = data_folders
    monkeypatch.setenv("FEDAVG_DATA", str(ours))
    with ray_cluster(1) as cluster:
        fleet = fleet_of(cluster)
        events = train(plan(rounds=10**6), fleet)
        next(events)
        monkeypatch.setenv("FEDAVG_DATA", str(other))
        cluster.more(1)
        with caplog.at_level(logging.WARNING, "fedavg.run"):
            next(event for event in events if "the run continues without it" in caplog.text)
        assert len(fleet.worker_pids) == 1
        events.close()


def test_code_that_nodes_lack_is_sent_along(cluster, monkeypatch):
    monkeypatch.syspath_prepend(str(OWN_CODE))
    own = Plan(
        task=TOY, data="ray_clusters:Points", algorithm="own_package.algorithms:Smoothed:memory=0.3", C=1, rounds=1
    )
    *_, expected = train(own)
    lacking = (
        "node .*: algorithm: cannot import 'own_package.algorithms:Smoothed'.*; install it there, or send it along"
    )
    with pytest.raises(PlanError, match=lacking):
        list(train(own, fleet_of(cluster, workers_per_node=1)))
    *_, last = train(own, fleet_of(cluster, workers_per_node=1, code=str(OWN_CODE / "own_package")))
    assert torch.equal(last.state.weights, expected.state.weights)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": "10.0.0.1"}, "got 'ray:10.0.0.1'; expected 'ray' .*'ray:auto'.* or 'ray:HOST:PORT'"),
        ({"address": "auto", "port": 1}, "got 'ray:auto:1'; expected"),
        ({"workers_per_node": 0}, "workers_per_node: got 0; expected 1 or more"),
        ({"code": "/no/such/folder"}, "code: got '/no/such/folder', which does not exist"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(FleetError, match=message):
        RayFleet(**settings)


def test_more_workers_than_a_node_has_cores_are_refused(cluster):
    with pytest.raises(FleetError, match="workers_per_node: got 2, but node .* has 1 cores; expected at most that"):
        list(train(plan(data="ray_clusters:Points"), fleet_of(cluster, workers_per_node=2)))


def test_no_ray_at_an_address_is_told():
    with pytest.raises(FleetError, match="no Ray at '127.0.0.1:1': .*; expected one: ray start --head"):
        list(train(plan(data="ray_clusters:Points"), RayFleet("127.0.0.1", 1)))


def test_a_device_that_workers_do_not_have_is_refused():
    with pytest.raises(PlanError, match="device: got 'cuda'; workers on Ray train on processors: expected 'cpu'"):
        list(train(plan(data="ray_clusters:Points", device="cuda"), RayFleet()))


def test_workers_of_this_machine_and_a_cluster_do_not_go_together():
    asked = CliRunner().invoke(cli, ["run", "mnist-2nn", "--fleet", "ray:auto", "--workers", "2", "--dry-run"])
    assert isinstance(asked.exception, PlanError)
    assert "--workers: got 2 with --fleet ray:auto, whose nodes have workers of their own" in str(asked.exception)


@pytest.mark.parametrize(("fleet", "right"), [("ray", True), ("ray:auto", True), ("local", False)])
def test_workers_per_node_is_for_ray_alone(fleet, right):
    words = ["run", "mnist-2nn", "--fleet", fleet, "--workers-per-node", "3", "--dry-run"]
    asked = CliRunner().invoke(cli, words)
    assert (asked.exit_code == 0) == right
    assert right or "got 'local:workers_per_node=3'; expected 'local'" in str(asked.exception)
