"""A service of several processes: any replica takes any request, one leads the runs, and the queue moves on once."""

import json
import os
import random
import signal
from hashlib import sha256
from time import sleep

import httpx2 as httpx
import numpy as np
import pytest
from harness import PATIENCE_S, wait_until
from operated import operating, operating_together, plan
from postgres import crashed
from several import Replicas, devices_plan, needs_nginx, simulated

from fedavg.cohorts import sample_cohort
from fedavg.errors import PlanError
from fedavg.fleets.http.server.store import Deposed, Runs, Store, StoreError
from fedavg.setup import population_of, resolve_data
from fleet_peers import NUMBERS, serving, until


class Roaming:
    """A client that sends each request to another replica than the one before, as a load balancer may."""

    def __init__(self, services, peer):
        self._services, self.peer, self._requests = services, peer, 0
        self._trained = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.peer.close()

    def _elsewhere(self):
        self.peer.close()
        self._requests += 1
        self.peer._port = self._services[self._requests % len(self._services)].port

    def poll(self):
        self._elsewhere()
        answer = self.peer.poll().json
        if answer["type"] == "done":
            self.peer.taken = None  # as a device does: it waits for another run
        return answer

    def next(self, kind):
        return until(lambda: (answer := self.poll())["type"] == kind and answer, f"for {kind}")

    def new_work(self):
        """Work that it has not done: for 0.1 s, a replica may ask again for an update that another one has."""
        new = lambda offer: (self.peer.taken["run"], offer["round"]) not in self._trained  # noqa: E731
        return until(lambda: new(offer := self.next("work")) and offer, "for new work")

    def train(self, rounds):
        for _ in range(rounds):
            offer = self.new_work()
            self._trained.add((self.peer.taken["run"], offer["round"]))
            model = self.request("GET", f"/v1/models/{offer['model']}")
            assert sha256(model.body).hexdigest() == offer["model"]
            self._elsewhere()
            answer = self.peer.upload(offer, self.peer.frame(offer, np.ones(NUMBERS), 10.0))
            assert answer.json["accepted"], answer

    def request(self, method, path):
        self._elsewhere()
        return self.peer.request(method, path)

    def latest(self):
        self._elsewhere()
        return self.peer.signed("GET", "/v1/models/latest")


def test_each_request_of_a_client_may_reach_another_replica(tmp_path, url):
    with operating_together(tmp_path, url) as (one, other), Roaming((one, other), one.peer(10)) as client:
        assert client.poll()["type"] == "wait"
        assert one.submit(plan(seed=1), "first").json == {"run": 1}
        assert other.submit(plan(seed=2, rounds=2), "second").json == {"run": 2}
        client.train(1)
        done = client.next("done")
        assert sha256(client.latest().body).hexdigest() == done["model"]
        client.train(2)
        done = client.next("done")
        assert (done["round"], done["more"]) == (2, True)
        assert sha256(client.latest().body).hexdigest() == done["model"]
        assert client.poll()["type"] == client.poll()["type"] == "wait", "told once by all replicas together"
        for each in (one, other):
            assert [(run["name"], run["state"]) for run in each.runs()] == [("first", "done"), ("second", "done")]
            assert done["model"] in each.runs()[1]["detail"]
        records = [tmp_path / replica / "runs" / run / "model.safetensors" for replica in "01" for run in "12"]
        until(lambda: all(record.exists() for record in records), "for the records of all runs at all replicas")
    for number, rounds in ((1, 1), (2, 2)):
        folders = [tmp_path / replica / "runs" / str(number) for replica in ("0", "1")]
        metrics = [(folder / "metrics.jsonl").read_text() for folder in folders]
        assert metrics[0] == metrics[1]
        assert len(metrics[0].splitlines()) == rounds
        models = {json.loads((folder / "summary.json").read_text())["model_sha256"] for folder in folders}
        assert len(models) == 1


def test_who_was_away_when_a_run_ended_hears_of_it_and_gets_the_model_wherever_it_asks(tmp_path, url):
    with operating_together(tmp_path, url) as services, Roaming(services, services[0].peer(10)) as client:
        services[0].submit(plan(seed=1))
        client.train(1)  # and goes away without a word
        until(lambda: services[1].state(1) == "done")
        services[1].submit(plan(seed=2))
        with Roaming(services, services[0].peer(10)) as another:
            another.train(1)
            until(lambda: services[1].state(2) == "done")
    with operating_together(tmp_path, url) as services, Roaming(services, client.peer) as client:
        done = client.next("done")
        assert done["model"] in services[0].runs()[0]["detail"]
        for _ in services:
            model = client.request("GET", f"/v1/models/{done['model']}")
            assert sha256(model.body).hexdigest() == done["model"]
        assert [client.poll()["type"] for _ in range(4)] == ["wait"] * 4, "told once by all replicas together"


def test_operators_change_runs_at_any_replica(tmp_path, url):
    with operating_together(tmp_path, url) as services:
        leads = until(lambda: [each for each in services if each.status()["replicas"] and _leads(each)])[0]
        (follows,) = (each for each in services if each is not leads)
        with Roaming(services, leads.peer(10)) as client:
            follows.submit(plan(rounds=3))
            follows.submit(plan(rounds=1, seed=5))
            client.train(1)
            until(lambda: follows.runs()[0]["committed"] == 1)
            assert follows.change(1, "pause").json == {"run": 1}
            assert leads.state(1) == "paused"
            client.train(1)  # of the second run
            until(lambda: leads.state(2) == "done")
            assert follows.change(2, "pause").error == "run-refused"
            follows.change(1, "go-on")
            offer = client.new_work()
            assert (offer["round"], offer["lr"]) == (2, 0.1)
            assert follows.change(1, "extend", {"rounds": 4, "lr": 0.05, "from_round": None}).json == {"run": 1}
            late = client.peer.upload(offer, client.peer.frame(offer, np.ones(NUMBERS), 10.0))
            again = until(lambda: (o := client.next("work"))["lr"] == 0.05 and o, "for the new plan")
            assert (again["round"], again["attempt"]) == (2, offer["attempt"] + 1), late
            client.train(1)
            until(lambda: follows.runs()[0]["committed"] == 2)
            assert follows.change(1, "cancel").json == {"run": 1}
            assert leads.state(1) == "cancelled"
            assert follows.change(1, "go-on").error == "run-refused"
            assert client.poll()["type"] == "wait"
    with Store.open(url, "run_1") as store:
        assert [row["lr"] for row in store.committed()] == [0.1, 0.05]
        assert len({attempt.round for attempt in store.attempts() if attempt.state == "done"}) == 2


def _leads(service):
    """Does this replica lead? Only it knows itself by its address."""
    found = service.admin("GET", "/admin/status").json["replicas"]
    return any(each["leads"] and each["url"].endswith(f":{service.port}") for each in found)


def test_clients_tokens_and_revocations_are_of_the_service(tmp_path, url):
    with operating_together(tmp_path, url) as (one, other):
        peer = one.peer(10, token=other.new_token())
        peer.poll()
        headers = peer.signer.headers("GET", "/v1/models/latest", b"")
        statuses = [each.ask("GET", "/v1/models/latest", b"", headers).status for each in (one, other, one)]
        assert statuses == [404, 401, 401], "a signed request is taken once by all replicas together"
        peer.close()
        peer._port = other.port
        assert peer.poll().json["type"] == "wait"
        other.submit(plan())
        until(lambda: peer.poll().json["type"] == "work")
        assert one.revoke(client=peer.k) == [peer.k]
        assert peer.poll().error == "revoked", "at the other replica, with its next request"
        for each in (one, other):
            assert [row["state"] for row in each.admin("GET", "/admin/clients").json["clients"]] == ["revoked"]
        peer.close()


def test_what_replicas_can_not_serve_together_is_refused(tmp_path, url):
    with operating_together(tmp_path, url) as services:
        for service, changes, problem in (
            (services[0], {"reducer": "median"}, "single updates stay in the process that received them"),
            (services[1], {"secagg": "complete:4:20", "clients": 20}, "a session of a round is in the memory"),
        ):
            answer = service.submit(plan(**changes))
            assert (answer.status, answer.error) == (409, "run-refused")
            assert problem.removeprefix("a ") in answer.json["detail"], answer.json
        assert services[0].runs() == []
    for options, problem in (
        ({"database": url, "side_by_side": 2}, r"--side-by-side: got 2 with --replica: .* expected 1"),
        ({}, r"--replica: got no --db; expected --db postgresql://"),
    ):
        with pytest.raises(PlanError, match=problem), operating(tmp_path / "refused", replica=True, **options):
            pass


def test_replicas_go_on_with_the_queue_after_all_were_stopped(tmp_path, url):
    with operating_together(tmp_path, url) as services, Roaming(services, services[0].peer(10)) as client:
        services[0].submit(plan(rounds=2))
        services[0].submit(plan(seed=9))
        client.train(1)
        client.new_work()
        peer = client.peer
    with operating_together(tmp_path, url) as services, Roaming(services, peer) as client:
        assert [run["state"] for run in services[1].runs()] == ["running", "queued"]
        assert client.next("work")["round"] == 2
        client.train(1)
        client.next("done")
        client.train(1)
        until(lambda: [run["state"] for run in services[1].runs()] == ["done", "done"])


def test_a_crash_of_the_database_loses_no_run_and_counts_nothing_twice(tmp_path, url, postgres):
    """What replicas share is lost: clients sign again, and send the updates again that they kept."""
    with (
        operating_together(tmp_path, url, minimum=2) as services,
        Roaming(services, services[0].peer(10)) as client,
    ):
        another = services[1].peer(10)
        services[0].submit(plan(C=1.0, clients=2))
        for peer in (client.peer, another):
            until(lambda peer=peer: peer.poll().json["type"] == "wait" and peer.taken)
        offers = [client.next("work"), another.offer()]
        assert another.upload(offers[1], another.frame(offers[1], np.ones(NUMBERS), 10.0)).json["accepted"]
        with crashed(postgres):
            pass
        again = until(
            lambda: (answer := another.poll()).status == 200 and answer.json["type"] == "work" and answer.json
        )
        assert (again["round"], again["attempt"]) == (1, 0)
        for peer in (another, client.peer):
            sent = lambda peer=peer: peer.upload(again, peer.frame(again, np.ones(NUMBERS), 10.0))  # noqa: E731
            until(lambda sent=sent: (answer := sent()).status == 200 and answer.json["accepted"])
        until(lambda: services[0].state(1) == "done")
        another.close()
    with Store.open(url, "run_1") as store:
        assert [(attempt.counted, attempt.state) for attempt in store.attempts()] == [((0, 1), "done")]
        assert store.committed()[0]["clients"] == 2


def test_a_database_is_of_replicas_of_a_service_or_of_a_service_that_is_alone(tmp_path, url):
    with operating_together(tmp_path, url, 1) as (service,):
        service.submit(plan())
        alone = pytest.raises(StoreError, match="is in use by .*; only one server may own a run")
        with alone, operating(tmp_path / "alone", database=url):
            pass
    with operating(tmp_path / "alone", database=url, tokens=tmp_path / "0") as service:
        refused = pytest.raises(StoreError, match="in use by a server that is no replica")
        with refused, operating(tmp_path / "again", replica=True, database=url):
            pass
        assert service.state(1) == "running"
    with operating_together(tmp_path, url, 1) as (service,), Roaming([service], service.peer(10)) as client:
        client.train(1)
        until(lambda: service.state(1) == "done")
    with pytest.raises(StoreError, match="belongs to a service"), serving(tmp_path / "plan", plan(), database=url):
        pass


# The table of runs


@pytest.fixture
def queue(url):
    """A service's database in term 2, and one run in its queue."""
    with Store.open(url) as store:
        runs = Runs(store.connections)
        runs.submit("rounds = 1\n", "plan", "", "operator", 0.0)
        store.begin_term()
        store.begin_term()
        yield runs


def test_only_the_latest_leader_moves_the_queue_on(queue):
    with pytest.raises(Deposed, match="note what became of run 1"):
        queue.set_state(1, "running", term=1)
    assert queue.one(1).state == "queued"
    assert queue.set_state(1, "running", term=2)


def test_a_state_is_changed_only_from_those_that_were_expected(queue):
    assert not queue.set_state(1, "done", only_from=("running",))
    assert not queue.set_state(1, "running", only_from=("queued",), plan_digest="another plan")
    assert queue.one(1).state == "queued"
    assert queue.set_state(1, "running", only_from=("queued",), plan_digest="plan")
    found = queue.one(1)
    queue.set_state(1, "paused")
    with pytest.raises(PlanError, match="was changed meanwhile"):
        queue.change(found, "rounds = 2\n", "other", {}, "running")
    assert (queue.one(1).plan_digest, queue.one(1).state) == ("plan", "paused")


def test_an_earlier_leader_of_the_service_can_not_take_a_run_back(url):
    with Store.open(url, "run_1") as old, Store.open(url, "run_1") as new:
        old.begin_term(1)
        new.begin_term(2)
        with pytest.raises(Deposed, match="a later term than 1"):
            old.begin_term(1)
        new.begin_round(1, 0, [0], "m")
        with pytest.raises(Deposed):
            old.abandon_round(1, 0, "late")
        new.begin_term(2)  # again, in the same term: the run was extended
        new.abandon_round(1, 0, "late")


# Real processes


class Services(Replicas):
    """Replicas of a service as processes, and devices, all of which reach all replicas through nginx."""

    def __init__(self, directory, url, count=2):
        super().__init__(directory, None, count, url, "--allow", "tiny", "--allow", "toys", front=True)

    def ask(self, replica, method, path, message=None):
        token = {"Authorization": f"Bearer {self.admin_token}"}
        answer = httpx.request(method, f"{replica.url}{path}", json=message, headers=token, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def submit(self, replica, plan):
        return self.ask(replica, "POST", "/admin/runs", {"plan": plan.to_toml(), "name": "", "init": None})["run"]

    def runs(self, replica):
        return self.ask(replica, "GET", "/admin/runs")["runs"]

    def ended(self, number):
        """What replicas said of the end of a run."""
        lines = [line for replica in self.replicas for line in replica.lines("run ends") if line["run"] == number]
        return [line["state"] for line in lines]


@needs_nginx
def test_another_replica_goes_on_with_the_run_and_the_queue_when_the_leader_is_killed_or_paused(tmp_path, url):
    """In the middle of a round: all updates but one are in, some of them in the leader's memory. SCAFFOLD: clients keep
    something between rounds, so that an update that is trained twice would be another."""
    plans = [devices_plan(rounds=3, algorithm="scaffold", seed=1), devices_plan(rounds=3, seed=2)]
    with Services(tmp_path, url) as fleet:
        wait_until(lambda: fleet.leader, "a leader")
        first, second = fleet.replicas
        assert [fleet.submit(each, one) for each, one in zip((first, second), plans, strict=True)] == [1, 2]
        fleet.wait_for_round(1)
        with fleet.held_open():
            dead = fleet.leader
            dead.kill()
            (alive,) = (replica for replica in fleet.replicas if replica is not dead)
            wait_until(lambda: fleet.leader is alive, "another leader")
        dead.start()
        wait_until(lambda: fleet.runs(alive)[1]["committed"], "the first round of the second run")
        with fleet.held_open():
            paused = fleet.leader
            os.kill(paused.pid, signal.SIGSTOP)
            wait_until(lambda: fleet.leader is not paused, "another leader")
            os.kill(paused.pid, signal.SIGCONT)
        for replica in fleet.replicas:
            wait_until(lambda r=replica: [run["state"] for run in fleet.runs(r)] == ["done", "done"], "both runs")
        for number, plan in enumerate(plans, 1):
            folders = [replica.directory / "runs" / str(number) for replica in fleet.replicas]
            wait_until(lambda folders=folders: all((f / "model.safetensors").exists() for f in folders), "the records")
            summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
            assert [each["model_sha256"] for each in summaries] == [simulated(plan)] * 2
            assert fleet.ended(number) == ["done"]
            check_counted_once(url, number, plan)
        assert [replica.stop() for replica in fleet.replicas] == [0, 0]
        assert not [line for replica in fleet.replicas for line in replica.lines() if "trace" in line]


def check_counted_once(url, number, plan):
    """Each round is committed once, with each client of its cohort."""
    population = population_of(resolve_data(plan))
    with Store.open(url, f"run_{number}") as store:
        done = [attempt for attempt in store.attempts() if attempt.state == "done"]
        assert [attempt.round for attempt in done] == list(range(1, plan.rounds + 1))
        for attempt in done:
            assert sorted(attempt.counted) == sorted(sample_cohort(plan, population, attempt.round))


@pytest.mark.slow
@needs_nginx
def test_twenty_kills_and_pauses_while_runs_follow_each_other(tmp_path, url):
    """Also between runs: none is left out, served twice, or another one than the simulator's."""
    algorithms = ("scaffold", "fedavg")
    plans = [devices_plan(rounds=4, seed=seed, algorithm=algorithms[seed % 2]) for seed in range(10)]
    rng = random.Random(3)
    with Services(tmp_path, url, 3) as fleet:
        wait_until(lambda: fleet.leader, "a leader")
        for one in plans:
            fleet.submit(rng.choice(fleet.replicas), one)
        for number in range(20):
            replica = fleet.leader if number % 2 else rng.choice(fleet.replicas)
            if number % 5 == 4:
                os.kill(replica.pid, signal.SIGSTOP)
                sleep(4.0)
                os.kill(replica.pid, signal.SIGCONT)
            else:
                replica.kill()
                sleep(rng.uniform(0, 1))
                replica.start()
            sleep(rng.uniform(0, 3))
        for replica in fleet.replicas:
            wait_until(replica.status, "the replica")
        over = ["done"] * len(plans)
        wait_until(lambda: [run["state"] for run in fleet.runs(fleet.replicas[0])] == over, "all runs", 4 * PATIENCE_S)
        for number, (plan, run) in enumerate(zip(plans, fleet.runs(fleet.replicas[1]), strict=True), 1):
            assert run["detail"].endswith(simulated(plan)), number
            check_counted_once(url, number, plan)
        assert not [line for replica in fleet.replicas for line in replica.lines() if "trace" in line]
