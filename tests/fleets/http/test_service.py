"""A service and its runs: submitted, one after another, paused, cancelled, extended; clients belong to the service."""

import json
import threading
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch
from operated import operating, plan, train
from safetensors.torch import load, save
from tiny import tiny_plan
from torch import ones

from fedavg import ArrayData, Connection, Device, run
from fedavg.errors import PlanError
from fedavg.fleets.http.device.link import Link
from fedavg.fleets.http.protocol.messages import Extension
from fedavg.fleets.http.server.rounds import Rules
from fedavg.fleets.http.server.store import Store, StoreError
from fedavg.fleets.worker import judges
from fedavg.plan import Plan
from fedavg.programs.extension import extended
from fedavg.runlog.checkpoint import from_tensors
from fedavg.setup import simulation
from fleet_peers import DATA, HOST, NUMBERS, fleet_plan, serving, until
from toys import TOY


def test_runs_are_served_one_after_another_to_the_same_clients(tmp_path):
    with operating(tmp_path) as service:
        assert service.runs() == []
        peer = service.peer(10)
        assert peer.poll().json["type"] == "wait"  # enrolled, and there is nothing to do
        assert service.submit(plan(seed=1), "first").json == {"run": 1}
        assert service.submit(plan(seed=2, rounds=2), "second").json == {"run": 2}
        train(peer, 1)
        train(peer, 2)
        until(lambda: service.state(2) == "done")
        runs = service.runs()
        assert [(run["run"], run["name"], run["state"], run["by"]) for run in runs] == [
            (1, "first", "done", "operator"),
            (2, "second", "done", "operator"),
        ]
        latest = peer.signed("GET", "/v1/models/latest")
        assert sha256(latest.body).hexdigest() in runs[1]["detail"]
        peer.close()
    for number, rounds in ((1, 1), (2, 2)):
        folder = tmp_path / "runs" / str(number)
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == rounds
        assert (folder / "model.safetensors").exists()


def test_devices_take_part_in_all_runs_and_get_the_simulators_models(tmp_path):
    """Two devices stay for two runs, of which the second starts from another seed; both models are the simulator's."""
    plans = [fleet_plan(rounds=2, seed=seed, data="none") for seed in (1, 2)]
    got: dict[int, list[str]] = {0: [], 1: []}
    with operating(tmp_path, minimum=2) as service, ExitStack() as stack:
        for k in got:
            device = Device(
                f"http://{HOST}:{service.port}", "toys:TOY", DATA.client(k), state=tmp_path / f"device-{k}", client=k,
                token=service.join_token, connection=Connection(insecure=True),
                on_model=lambda model, k=k: got[k].append(model.sha256),
            )  # fmt: skip
            thread = threading.Thread(target=device.run, args=(1.0,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(device.stop)
        for each in plans:
            service.submit(each)
        until(lambda: [len(models) for models in got.values()] == [2, 2], "for the models of both runs", 120)
    x, y = (torch.cat([getattr(DATA.client(k), name) for k in got]) for name in "xy")
    data = ArrayData("two", x, y, np.split(np.arange(len(y)), [len(DATA.client(0))]), None)
    expected = [run(replace(each, task=TOY, data=data)).summary.model_sha256 for each in plans]
    assert got == {0: expected, 1: expected}


def test_what_can_not_be_served_is_refused_when_it_is_submitted(tmp_path):
    with operating(tmp_path) as service:
        for changes, problem in (
            ({"evaluate": "server"}, "no test set"),
            ({"task": "os:path"}, "os"),
            ({"sampling": "poisson"}, "sampling"),
        ):
            answer = service.submit(plan(**changes))
            assert (answer.status, answer.error) == (409, "run-refused"), changes
            assert problem in answer.json["detail"]
        answer = service.admin("POST", "/admin/runs", {"plan": "task = 'toys:TOY'", "name": "", "init": None})
        assert "data: got none" in answer.json["detail"]
        assert service.runs() == []
        assert service.change(7, "cancel").error == "no-such-run"
        with service.peer(1) as stranger:
            assert stranger.signed("GET", "/admin/runs").error == "admin-token"


def test_a_run_is_paused_goes_on_and_is_cancelled_while_the_next_one_is_served(tmp_path):
    with operating(tmp_path) as service:
        peer = service.peer(10)
        service.submit(plan(rounds=3))
        service.submit(plan(rounds=1, seed=5))
        train(peer, 1)
        service.change(1, "pause")
        until(lambda: service.state(1) == "paused")
        train(peer, 1)  # of the second run
        until(lambda: service.state(2) == "done")
        assert service.change(2, "pause").error == "run-refused"
        service.change(1, "go-on")
        assert peer.offer()["round"] == 2
        service.change(1, "cancel")
        until(lambda: service.state(1) == "cancelled")
        assert service.ask("GET", "/healthz").status == 200
        assert service.change(1, "go-on").error == "run-refused"
        peer.close()
    assert len((tmp_path / "runs" / "1" / "metrics.jsonl").read_text().splitlines()) == 1


def test_a_run_is_extended_and_its_record_says_so(tmp_path):
    with operating(tmp_path) as service:
        peer = service.peer(10)
        service.submit(plan(rounds=2))
        train(peer, 1)
        offer = peer.offer()
        assert offer["lr"] == 0.1
        change = {"rounds": 3, "lr": 0.05, "from_round": None}
        assert service.change(1, "extend", change).json == {"run": 1}
        peer.upload(offer, peer.frame(offer, np.ones(NUMBERS), 10.0))  # of the old plan: it comes too late
        again = until(lambda: (o := peer.offer())["lr"] == 0.05 and o)
        assert (again["round"], again["attempt"]) == (2, offer["attempt"] + 1)
        train(peer, 2)
        until(lambda: service.state(1) == "done")
        (noted,) = service.runs()[0]["changes"]
        assert {name: noted[name] for name in ("after_round", "by", "rounds", "lr")} == {
            "after_round": 1, "by": "operator", "rounds": 3, "lr": 0.05,
        }  # fmt: skip
        assert service.change(1, "extend", {"rounds": 2, "lr": None, "from_round": None}).error == "run-refused"
        service.change(1, "extend", {"rounds": 4, "lr": None, "from_round": None})  # also one that is done
        train(peer, 1)
        until(lambda: service.state(1) == "done")
        peer.close()
    rows = [json.loads(line) for line in (tmp_path / "runs" / "1" / "metrics.jsonl").read_text().splitlines()]
    assert [row["lr"] for row in rows] == [0.1, 0.05, 0.05, 0.05]


def test_a_run_starts_from_a_model_that_is_given(tmp_path):
    given = {"0.weight": ones(16, 8), "0.bias": ones(16), "2.weight": ones(3, 16), "2.bias": ones(3)}
    content = save(given)
    with operating(tmp_path) as service:
        peer = service.peer(10)
        assert service.submit(plan(), init=sha256(content).hexdigest()).json == {"run": 1}
        assert service.state(1) == "incomplete"
        token = {"Authorization": f"Bearer {service.admin_token}"}
        wrong = save({"0.weight": ones(2)})
        assert service.ask("PUT", "/admin/runs/1/model", wrong, token).error == "run-refused"
        assert service.ask("PUT", "/admin/runs/1/model", content, token).status == 200
        offer = peer.offer()
        assert service.ask("GET", f"/v1/models/{offer['model']}").body == ones(NUMBERS).numpy().tobytes()
        peer.close()


def test_clients_are_offered_only_tasks_that_their_owners_allow(tmp_path):
    with operating(tmp_path) as service:
        other, peer = service.peer(10, tasks=["mnist-2nn"]), service.peer(10)
        service.submit(plan())
        train(peer, 1)
        assert other.poll().json["type"] == "wait"
        assert other.taken is None
        assert service.status()["clients"] == 2
        peer.close(), other.close()


def test_a_service_goes_on_where_it_was_with_its_clients_and_their_revocations(tmp_path):
    with operating(tmp_path) as service:
        peer, gone = service.peer(10), service.peer(10)
        service.submit(plan(rounds=2))
        service.submit(plan(seed=9))
        service.revoke(client=gone.k)
        train(peer, 1)
        peer.offer()
        peer.close(), gone.close()
    with operating(tmp_path) as service:
        assert [run["state"] for run in service.runs()] == ["running", "queued"]
        peer._port = gone._port = service.port
        assert gone.poll().error == "revoked"
        assert peer.offer()["round"] == 2
        train(peer, 2)
        until(lambda: [run["state"] for run in service.runs()] == ["done", "done"])
        peer.close(), gone.close()


def test_a_database_is_of_a_service_or_of_one_run(tmp_path):
    with operating(tmp_path) as service:
        service.submit(plan())
    with pytest.raises(StoreError, match="belongs to a service"), serving(tmp_path, plan()):
        pass
    with Store.open(
        tmp_path / "alone" / "fleet.db" if (tmp_path / "alone").mkdir() else tmp_path / "alone/fleet.db"
    ) as s:
        s.save_run("", "ab", "devices")
    with pytest.raises(StoreError, match="belongs to one run"), operating(tmp_path / "alone"):
        pass


@pytest.mark.parametrize(
    ("lr", "change", "expected"),
    [
        (0.1, Extension(None, 0.05, None), "0.1,4:0.05"),
        (0.1, Extension(20, 0.05, 15), "0.1,15:0.05"),
        ("0.1,2:0.5,8:0.2", Extension(None, 0.05, 5), "0.1,2:0.5,5:0.05"),
        (0.1, Extension(20, None, None), 0.1),
    ],
)
def test_a_plan_is_extended_from_the_next_round_on(lr, change, expected):
    after = extended(Plan(lr=lr, rounds=10), change, committed=3)
    assert (after.lr, after.rounds) == (expected, change.rounds or 10)
    assert [after.work(t).lr for t in (1, 2, 3)] == [Plan(lr=lr, rounds=10).work(t).lr for t in (1, 2, 3)]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (Extension(None, None, None), "no change"),
        (Extension(3, None, None), "expected more than the 3"),
        (Extension(None, 0.1, 3), "expected one from 4"),
        (Extension(None, 0.1, 11), "to 10, the last"),
        (Extension(12, None, 5), "expected lr as well"),
    ],
)
def test_what_is_done_is_not_changed(change, problem):
    with pytest.raises(PlanError, match=problem):
        extended(Plan(rounds=10), change, committed=3)
    with pytest.raises(PlanError, match="follows a formula"):
        extended(replace(Plan(rounds=10), lr="cosine:0.1"), Extension(None, 0.1, 5), committed=3)


def test_a_run_is_for_so_many_clients_whatever_their_numbers(tmp_path):
    """Numbers are the service's: K = 2 of a plan means two clients, also if those of its task have numbers 1 to 3."""
    with operating(tmp_path, minimum=None) as service:
        stranger = service.peer(10, tasks=["mnist-2nn"])
        service.revoke(client=stranger.k)  # who would not have taken part is not missing either
        peers = [service.peer(10) for _ in range(3)]
        assert [peer.k for peer in peers] == [1, 2, 3]
        service.submit(plan(clients=2))
        for peer in peers[1:]:
            until(lambda peer=peer: peer.poll() and peer.taken)
        offers = [peer.offer() for peer in peers[1:]]
        for peer, offer in zip(peers[1:], offers, strict=True):
            peer.upload(offer, peer.frame(offer, np.ones(NUMBERS), 10.0))
        until(lambda: service.state(1) == "done")
        for peer in (stranger, *peers):
            peer.close()
    assert json.loads((tmp_path / "runs" / "1" / "metrics.jsonl").read_text())["clients"] == 2


def test_no_more_clients_are_invited_than_the_plan_is_for(tmp_path):
    """Devices decline to be one of more than K: neither over-selection nor an evaluation goes beyond."""
    with operating(tmp_path, minimum=3, rules=Rules(over_selection=2.0)) as service:
        peers = [service.peer(10) for _ in range(4)]
        service.submit(plan(clients=3, C=0.7))
        for peer in peers:
            until(lambda peer=peer: peer.poll() and peer.taken)
        until(lambda: service.status()["round"])
        found = [answer for peer in peers if (answer := peer.poll().json)["type"] == "work"]
        assert [answer["invited"] for answer in found] == [3, 3, 3]
        for peer in peers:
            peer.close()
    setup, _ = simulation(tiny_plan(clients=8, rounds=1))
    chosen = judges(setup, 1, np.arange(12))
    assert (len(set(chosen)), chosen) == (8, sorted(chosen))


def test_a_cohort_is_a_share_of_those_who_may_take_part(tmp_path):
    """Of six who are enrolled, two may: C = 1/2 of them is one."""
    with operating(tmp_path, minimum=None) as service:
        others = [service.peer(10, tasks=["mnist-2nn"]) for _ in range(4)]
        peers = [service.peer(10) for _ in range(2)]
        for peer in peers:
            peer.poll()
        service.submit(plan(C=0.5, rounds=2))

        def invited():
            return [peer for peer in peers if peer.poll().json["type"] == "work"]

        assert len(until(invited)) == 1
        for peer in (*others, *peers):
            peer.close()


def test_who_was_away_when_a_run_ended_hears_of_it_from_a_server_that_was_started_again(tmp_path):
    """It is told before it is offered the next run, and once."""
    with operating(tmp_path) as service:
        peer, other = service.peer(10), service.peer(10, tasks=["mnist-2nn"])
        service.submit(plan(seed=1))
        train(peer, 1)  # and goes away without a word
        until(lambda: service.state(1) == "done")
        taken, digest = peer.taken, service.runs()[0]["detail"].split()[-1]
        peer.close(), other.close()
    with operating(tmp_path) as service:
        peer._port = other._port = service.port
        service.submit(plan(seed=2))
        until(lambda: service.state(2) == "running")
        other.taken = taken
        assert other.poll().json["type"] == "wait"
        assert other.poll().json["type"] == "wait"  # it is of another task: the run is not for it
        assert (peer.poll().json["type"], peer.taken) == ("wait", taken)
        done = peer.poll().json
        assert (done["type"], done["model"], done["round"], done["more"]) == ("done", digest, 1, True)
        latest = peer.signed("GET", "/v1/models/latest")
        assert sha256(latest.body).hexdigest() == digest
        assert peer.offer()["round"] == 1
        assert peer.taken["run"] == 2
        peer.taken = taken
        assert peer.poll().json["type"] == "work"  # it has been told
        peer.close(), other.close()


def test_a_device_hands_over_a_run_s_model_once_whoever_is_started_again(tmp_path):
    heard = []

    def device(service):
        return Device(
            f"http://{HOST}:{service.port}", "toys:TOY", DATA.client(0), state=tmp_path / "device",
            token=service.join_token, connection=Connection(insecure=True),
            on_model=lambda model: heard.append(model.sha256),
        )  # fmt: skip

    with operating(tmp_path / "service") as service:
        port = service.port
        service.submit(plan(rounds=1))
        with device(service) as first:
            until(lambda: first.step().asked == "work")
        until(lambda: service.state(1) == "done")
        assert heard == []
    for again in range(2):
        with operating(tmp_path / "service", listen=port) as service, device(service) as second:
            asked = [second.step(0.1).asked for _ in range(4)]
            assert ("done" in asked) == (again == 0)
    assert heard == [sha256(final_model(tmp_path / "service" / "runs" / "1")).hexdigest()]


def test_a_device_hands_over_no_other_model_than_the_one_that_its_run_ended_with(tmp_path, caplog):
    heard, over = [], []

    class Tampered(Link):
        """Somebody on the way sends another model of the same size, once the run is over."""

        def download(self, path, size):
            data = super().download(path, size)
            return bytes(len(data)) if over else data

    with operating(tmp_path / "service") as service:
        service.submit(plan(rounds=1))
        device = Device(
            f"http://{HOST}:{service.port}", "toys:TOY", DATA.client(0), state=tmp_path / "device",
            token=service.join_token, on_model=lambda model: heard.append(model.sha256),
            make_link=lambda key: Tampered(f"http://{HOST}:{service.port}", key, None, 60.0),
        )  # fmt: skip
        with device:
            until(lambda: device.step().asked == "work")
            over.append(True)
            until(lambda: device.step(1.0).asked == "done")
    assert heard == []
    (line,) = (vars(each) for each in caplog.records if each.getMessage() == "the model that came is not the run's")
    assert (line["round"], line["model"]) == (1, sha256(bytes(4 * NUMBERS)).hexdigest())


def test_the_model_of_a_finished_run_is_found_by_its_digest_after_a_restart(tmp_path):
    with operating(tmp_path) as service:
        peer = service.peer(10)
        service.submit(plan(seed=1))
        train(peer, 1)
        until(lambda: service.state(1) == "done")
        digest = service.runs()[0]["detail"].split()[-1]
        peer.close()
    with operating(tmp_path) as service:
        assert sha256(service.ask("GET", f"/v1/models/{digest}").body).hexdigest() == digest
        assert service.ask("GET", f"/v1/models/{digest[::-1]}").error == "no-such-model"
    with operating(tmp_path, publish="none") as service:
        assert service.ask("GET", f"/v1/models/{digest}").error == "no-such-model"


def final_model(directory):
    """The numbers of a run's model, as the protocol sends them."""
    with Store.open(directory / "fleet.db") as store:
        return from_tensors(load(store.last_state()[1])).weights.numpy().astype("<f4").tobytes()
