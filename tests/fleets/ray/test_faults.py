"""Actors that are killed or hang, nodes that go and come, an object store without room: the same bits all the same."""

import os
import re
import signal
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import torch

from fedavg import Task, train
from fedavg.errors import FleetError, TaskError
from ray_clusters import Elsewhere, Slow, die, fail, fleet_of, ray_cluster, wide_net
from toys import toy_data, toy_plan

SIZES = (7, 12, 0, 8, 20, 9, 31, 5, 14, 6)
PATIENCE_S = 300


def slow_plan(**changes):
    values = {"task": Task("slow", Slow), "data": toy_data(SIZES), "C": 0.8, "rounds": 5, "engine": "plain"}
    return toy_plan(**{**values, **changes})


@pytest.fixture(scope="module")
def expected():
    *_, last = train(slow_plan())
    return last.state.weights


@contextmanager
def meanwhile(deed):
    """Do something in another thread; what it raises is raised here."""
    failed: list[BaseException] = []

    def act():
        try:
            deed()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join(PATIENCE_S)
    assert not failed, failed


def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


def test_killed_actors_are_replaced_and_the_result_is_unchanged(cluster, expected):
    fleet, killed, over = fleet_of(cluster, workers_per_node=1), [], threading.Event()

    def kill():
        while len(killed) < 4 and not over.wait(0.7):
            for pid in fleet.worker_pids[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    events = train(slow_plan(), fleet)
    next(events)
    with meanwhile(kill):
        *_, last = events
        over.set()
    assert len(set(killed)) >= 2
    assert torch.equal(last.state.weights, expected)


def nodes_of(fleet):
    return {member.node.id for member in fleet._pool.crew.members.values()}


def test_a_node_that_is_gone_in_the_middle_of_a_round_and_one_that_comes_later(expected):
    with ray_cluster(1, 1) as cluster:
        fleet = fleet_of(cluster)
        with closing(train(slow_plan(rounds=40), fleet)) as events:
            next(events)
            before = nodes_of(fleet)
            next(events)

            def remove():
                time.sleep(0.5)  # into a round
                cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

            with meanwhile(remove):
                lost = next(event for event in events if len(nodes_of(fleet)) == 1)
            cluster.more(1)
            found = next(event for event in events if len(nodes_of(fleet)) == 2)
            last, after = next(events), nodes_of(fleet)
    assert len(before) == len(after) == 2
    assert before != after
    wanted = {event.round: event.state.weights for event in train(slow_plan(rounds=last.round))}
    assert all(torch.equal(event.state.weights, wanted[event.round]) for event in (lost, found, last))


def test_a_worker_that_is_stopped_is_replaced(cluster, expected):
    fleet = fleet_of(cluster, workers_per_node=1)
    with closing(train(slow_plan(worker_timeout=4), fleet)) as events:
        next(events)
        stopped = fleet.worker_pids[0]
        os.kill(stopped, signal.SIGSTOP)
        *_, last = events
        assert stopped not in fleet.worker_pids
    assert torch.equal(last.state.weights, expected)


def test_a_client_that_kills_its_workers_ends_the_run(cluster, monkeypatch):
    monkeypatch.setattr("fedavg.fleets.ray.crew.MAX_DEATHS", 1)
    plan = toy_plan(data=Elsewhere(toy_data(), 3, die), C=1)
    with pytest.raises(FleetError, match="2 workers died in one round, the last on .*; expected none"):
        list(train(plan, fleet_of(cluster, workers_per_node=1)))


def test_an_error_in_an_actor_is_told_with_its_traceback(cluster):
    plan = toy_plan(data=Elsewhere(toy_data(), 3, fail), C=1)
    with pytest.raises(TaskError, match="(?s)'toy' failed in a worker.*not today"):
        list(train(plan, fleet_of(cluster, workers_per_node=1)))


def created_bytes(session):
    """What was ever put into the object stores, as Ray itself notes it now and then, and the fewest notes of a node."""
    logs = [path.read_text() for path in (Path(session) / "logs").glob("raylet*.out")]
    notes = [re.findall(r"num bytes created total: (\d+)", log) for log in logs]
    return sum(int(of_node[-1]) for of_node in notes if of_node), min(len(of_node) for of_node in notes)


def settled(session):
    """The same from notes that are newer than this call: those before may have been under way."""
    _, notes = created_bytes(session)
    until(lambda: created_bytes(session)[1] > notes + 1)
    return created_bytes(session)[0]


#: By the cores of the nodes, of which the first is the driver's: the stores that weights, and a sum, come to be in.
STORES = {(1,): (1, 0), (0, 1): (2, 2)}


@pytest.mark.parametrize("nodes", [(0, 1), pytest.param((1,), marks=pytest.mark.slow)])  # a start of Ray each
def test_a_single_update_never_enters_the_object_store(nodes):
    """It may spill to a disk. P = 48,003: weights are 192,012 bytes, the sum of updates 384,024."""
    config = {"event_stats_print_interval_ms": 200}
    weights, sums = (stores * size for stores, size in zip(STORES[nodes], (192_012, 384_024), strict=True))
    with ray_cluster(*nodes, _system_config=config) as cluster:
        session = cluster.head_node.get_session_dir_path()

        def per_round(**changes):
            plan = toy_plan(task=Task("wide", wide_net), evaluate="none", rounds=4, **changes)
            with closing(train(plan, fleet_of(cluster, workers_per_node=1))) as events:
                next(events)
                before = settled(session)
                clients = [event.clients for event in events]
                return (settled(session) - before) / 4, clients

        alone, clients = per_round(C=0)
        assert clients == [1] * 4
        assert weights <= alone < weights + 10_000, "the weights, and nothing of the size of an update"
        together, _ = per_round(C=1)
        assert weights + sums <= together < weights + sums + 10_000, "the weights, and the sum of a node elsewhere"
        reduced, _ = per_round(C=1, reducer="median")
        assert weights <= reduced < weights + 10_000, "no client's update, though the rule sees each of them"
        kept, _ = per_round(C=1, algorithm="scaffold")
        assert kept - together < weights + sums + 10_000, "twice as many numbers, but no client's variates"
        masked, _ = per_round(C=1, secagg="complete:10:40")
        assert weights <= masked < weights + 10_000, "no client's ring elements, and no sum: it is made here"


def test_an_object_store_without_room(caplog):
    """Neither in memory nor on the disk: Ray believes the disk to be full."""
    import ray  # by the one worker that runs this: all collect it
    from ray.exceptions import ObjectStoreFullError, OutOfDiskError

    config = {
        "automatic_object_spilling_enabled": False, "local_fs_capacity_threshold": 0.001,
        "local_fs_monitor_interval_ms": 100, "object_store_full_delay_ms": 10,
    }  # fmt: skip
    plan = toy_plan(task=Task("wide", wide_net), C=1, rounds=3)
    *_, expected = train(plan)
    with ray_cluster(1, _system_config=config) as cluster, closing(train(plan, fleet_of(cluster))) as events:
        next(events)
        held = []
        with suppress(OutOfDiskError, ObjectStoreFullError):
            while True:
                held.append(ray.put(bytes(200 << 10)))
        *_, last = events
    assert torch.equal(last.state.weights, expected.state.weights)
    told = [record.message for record in caplog.records if "object store" in record.message]
    assert len(told) == 1
    assert told[0].startswith("Ray's object store has no room")
