"""Runs of a service side by side: each client is at one of them, and they take turns with those that they share."""

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch
from operated import operating, plan, train

from fedavg import ArrayData, Connection, Device, run
from fleet_peers import DATA, HOST, fleet_plan, until
from toys import TOY


@contextmanager
def devices(service, directory, tasks, got):
    """One device for each of the clients of DATA, in threads; `got` is told of the models that each fetched."""
    with ExitStack() as stack:
        for k, allowed in enumerate(tasks):
            device = Device(
                f"http://{HOST}:{service.port}", allowed, DATA.client(k), state=directory / f"device-{k}", client=k,
                token=service.join_token, connection=Connection(insecure=True),
                on_model=lambda model, k=k: got.append((k, model.sha256)),
            )  # fmt: skip
            thread = threading.Thread(target=device.run, args=(1.0,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(device.stop)
        yield


def simulated(each, clients):
    parts = [DATA.client(k) for k in clients]
    x, y = (torch.cat([getattr(part, name) for part in parts]) for name in "xy")
    starts = np.cumsum([len(part) for part in parts])[:-1]
    data = ArrayData("some", x, y, np.split(np.arange(len(y)), starts), None)
    return run(replace(each, task=TOY, data=data)).summary.model_sha256


def test_runs_that_need_all_clients_take_turns_and_both_are_the_simulators(tmp_path, caplog):
    caplog.set_level("INFO", "fedavg.fleet")
    plans = [fleet_plan(rounds=4, seed=seed, data="none") for seed in (1, 2)]
    got = []
    with operating(tmp_path, minimum=3, side_by_side=2) as service:
        for each in plans:
            service.submit(each)
        until(lambda: [each["state"] for each in service.runs()] == ["running", "running"])
        with devices(service, tmp_path, ["toys:TOY"] * 3, got):
            until(lambda: len(got) == 6, "for the models of both runs", 60)
    expected = [simulated(each, range(3)) for each in plans]
    assert sorted(got) == sorted((k, model) for k in range(3) for model in expected)
    commits = [record.model for record in caplog.records if record.getMessage() == "committed"]
    ends = [commits.index(model) for model in expected]
    assert min(ends) >= 4, "one run was over before the other had committed a round"


def test_runs_of_different_tasks_are_served_at_the_same_time(tmp_path):
    """Neither waits for the other, although the clients of one never come to the other."""
    with operating(tmp_path, side_by_side=2, minimum=1) as service:
        mine, other = service.peer(10), service.peer(10, tasks=["toys:OTHER"])
        service.submit(plan(rounds=2))
        service.submit(plan(rounds=2, task="toys:OTHER"))
        offers = [peer.offer() for peer in (mine, other)]
        assert (mine.taken["run"], other.taken["run"]) == (1, 2)
        for peer, offer in zip((mine, other), offers, strict=True):
            assert peer.upload(offer, peer.frame(offer, np.ones(195), 10.0)).json["accepted"]
        train(other, 1)
        until(lambda: service.state(2) == "done")
        assert service.state(1) == "running"
        train(mine, 1)
        until(lambda: service.state(1) == "done")
        mine.close(), other.close()


def test_a_run_that_waits_in_vain_keeps_no_clients_from_others(tmp_path):
    """The first needs three clients, and there are two: they work for the second, until a third one comes."""
    with operating(tmp_path, side_by_side=2) as service:
        service.submit(plan(rounds=1, clients=3))
        until(lambda: service.state(1) == "running")
    with operating(tmp_path, side_by_side=2, minimum=None) as service:
        peers = [service.peer(10), service.peer(10)]
        for peer in peers:  # a run that goes on may not be offered yet
            until(lambda peer=peer: peer.poll() and (peer.taken or {}).get("run") == 1)
        service.submit(plan(rounds=1, clients=2, seed=4))
        for peer in peers:
            train(peer, 1)
            assert peer.taken["run"] == 2
        until(lambda: service.state(2) == "done")
        peers.append(service.peer(10))
        for _ in range(2):  # told that the second run is over, then at the first
            for peer in peers:
                peer.poll()
        for peer in peers:
            train(peer, 1)
        until(lambda: service.state(1) == "done")
        for peer in peers:
            peer.close()


def test_one_run_is_paused_and_the_other_goes_on(tmp_path):
    with operating(tmp_path, side_by_side=2) as service:
        peer = service.peer(10)
        service.submit(plan(rounds=2, seed=1))
        service.submit(plan(rounds=2, seed=2))
        until(lambda: [each["state"] for each in service.runs()] == ["running", "running"])
        train(peer, 1)
        service.change(1, "pause")
        until(lambda: service.state(1) == "paused")
        while service.state(2) != "done":
            if (answer := peer.poll(0.2).json)["type"] == "work":
                peer.upload(answer, peer.frame(answer, np.ones(195), 10.0))
        service.change(1, "go-on")
        while service.state(1) != "done":
            if (answer := peer.poll(0.2).json)["type"] == "work":
                peer.upload(answer, peer.frame(answer, np.ones(195), 10.0))
        peer.close()


def test_a_revoked_client_is_shut_out_of_all_runs(tmp_path):
    with operating(tmp_path, side_by_side=2) as service:
        stays, gone = service.peer(10), service.peer(10)
        service.submit(plan(rounds=2, seed=1, clients=2))
        service.submit(plan(rounds=2, seed=2, clients=2))
        for peer in (stays, gone):
            peer.offer()
        service.revoke(client=gone.k)
        assert gone.poll().error == "revoked"
        stays.close(), gone.close()
