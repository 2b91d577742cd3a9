"""One server of several processes: real replicas on a real PostgreSQL, killed, paused and cut off from it."""

import os
import random
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from time import sleep, time

import httpx2 as httpx
import pytest
from harness import PATIENCE_S, DeviceProcess, Hand, Server, free_port, wait_until
from postgres import database, out_of_connections, restarted_elsewhere
from safetensors.torch import load
from tiny import SIZES, tiny_plan

import fedavg
from fedavg.cohorts import sample_cohort
from fedavg.fleets.http.device.link import ServerRefused
from fedavg.fleets.http.server.store import Store, schema
from fedavg.runlog.checkpoint import from_tensors
from fedavg.setup import population_of, resolve_data

CLIENTS = len(SIZES)
#: More rounds than any test has time for.
ENDLESS = 100_000
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="needs nginx (Debian: nginx-light)")
FRONT = Path(__file__).parents[3] / "deploy" / "nginx-fleet.conf"


@cache
def simulated(plan):
    return fedavg.run(plan).summary.model_sha256


class Front:
    """nginx before the replicas."""

    def __init__(self, directory, ports):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        servers = "".join(f"server 127.0.0.1:{each} max_fails=1 fail_timeout=1s; " for each in ports)
        self._config = directory / "nginx.conf"
        temporary = "".join(
            f"{name}_temp_path {directory}/nginx-{name};"
            for name in ("proxy", "client_body", "fastcgi", "uwsgi", "scgi")
        )
        self._config.write_text(
            f"pid {directory}/nginx.pid; error_log {directory}/nginx.log; events {{}} "
            f"http {{ access_log off; {temporary} upstream replicas {{ {servers} keepalive 16; }} "
            f"server {{ listen 127.0.0.1:{port}; set $replicas http; include {FRONT}; }} }}"
        )

    @contextmanager
    def running(self):
        process = subprocess.Popen([NGINX, "-c", str(self._config), "-g", "daemon off; master_process off;"])
        try:
            yield
        finally:
            process.kill()
            process.wait()


class Replicas:
    """So many replicas, and devices; with a front, all devices reach all replicas through it."""

    def __init__(self, directory, plan, count, url, *options, front=False, clients=CLIENTS):
        self.plan, self.url = plan, url
        common = ("--replica", "--db", url, "--min-clients", str(max(clients, 1)), "--linger", "5", *options)
        self.replicas = []
        for number in range(count):
            (directory / f"replica-{number}").mkdir(parents=True)
            self.replicas.append(Server(directory / f"replica-{number}", plan, *common))
        self.front = Front(directory, [replica.port for replica in self.replicas]) if front else None
        gates = [self.front] if front else self.replicas
        self.devices = [DeviceProcess(gates[k % len(gates)], k, directory) for k in range(clients)]
        self._keys = []
        self._stack = ExitStack()

    def __enter__(self):
        if self.front:
            self._stack.enter_context(self.front.running())
        for replica in self.replicas:
            replica.start()
            self._stack.callback(lambda replica=replica: replica.kill())
        token = self.token
        for device in self.devices:
            device.start(token)
            self._stack.callback(device.kill)
        return self

    def __exit__(self, *_):
        self._stack.close()
        for hand in (hand for replica in self.replicas for hand in replica.hands):
            hand.link.close()

    @property
    def token(self):
        """Whichever replica was first has made the one join token."""
        files = [replica.directory / "join-token" for replica in self.replicas]
        made = lambda: [file for file in files if file.exists()]  # noqa: E731
        wait_until(lambda: all(replica.status() for replica in self.replicas) and len(made()) == 1, "one join token")
        return made()[0].read_text()

    def enrol(self, count):
        """So many clients that are led by hand, at whichever replica."""
        maker = next(replica for replica in self.replicas if (replica.directory / "join-token").exists())
        self._keys = [Hand(maker, k).link.signer.key for k in range(count)]

    def offers(self, *replicas):
        """Clients 0, 1, ..., each at one of the replicas; and what they are asked for."""
        hands = [self.hand(replica, k) for k, replica in enumerate(replicas)]
        for hand in hands:
            hand.poll(0)
        return hands, [hand.offered() for hand in hands]

    def hand(self, replica, k):
        return Hand(replica, k, self._keys[k])

    @property
    def leader(self):
        """The replica that has begun to lead last."""
        began = [(line["term"], replica) for replica in self.replicas for line in replica.lines("leading")]
        return max(began, key=lambda pair: pair[0])[1] if began else None

    def committed(self):
        return max((replica.status() or {}).get("committed", 0) for replica in self.replicas)

    def wait_for_round(self, round):
        wait_until(lambda: self.committed() >= round, f"round {round}", 4 * PATIENCE_S)

    def wait_for_another_round(self):
        self.wait_for_round(self.committed() + 1)

    @contextmanager
    def held_open(self):
        """In the middle of a round: all updates but one are in, and that one does not come before the end."""
        last = self.devices[-1].process.pid
        all_but_one = lambda status: status["round"] and status["round"]["accepted"] == CLIENTS - 1  # noqa: E731
        os.kill(last, signal.SIGSTOP)
        try:
            wait_until(
                lambda: any(all_but_one(found) for each in self.replicas if (found := each.status())),
                "all updates but one",
            )
            yield
        finally:
            os.kill(last, signal.SIGCONT)
        self.wait_for_another_round()

    def check(self):
        """All have ended well, with the simulator's model; every client of each cohort counted, once."""
        for replica in self.replicas:
            assert replica.ended(4 * PATIENCE_S) == 0, replica.log.read_text()[-3000:]
            assert replica.summary()["model_sha256"] == simulated(self.plan)
        assert self._counted_once() == self.plan.rounds
        for device in self.devices:
            device.process.join(PATIENCE_S)
            assert device.process.exitcode == 0, device.log.read_text()[-2000:]

    def check_so_far(self):
        """The same of the rounds up to now, and the replicas are stopped for it."""
        for replica in self.replicas:
            assert replica.stop() == 0, replica.log.read_text()[-3000:]
        reached = self._counted_once()
        with Store.open(self.url) as store:
            state = from_tensors(load(store.last_state()[1]))
        wanted = next(event for event in fedavg.train(self.plan) if getattr(event, "round", 0) == reached)
        assert state.weights.equal(wanted.state.weights)

    def _counted_once(self):
        """How many rounds are committed, each with every client of its cohort."""
        assert not [line for replica in self.replicas for line in replica.lines() if "trace" in line]
        population = population_of(resolve_data(self.plan))
        with Store.open(self.url) as store:
            for round in range(1, store.last_round() + 1):
                assert store.counted(round).clients == set(sample_cohort(self.plan, population, round))
            return store.last_round()


def full_plan(**changes):
    return tiny_plan(**{"C": 1.0, "clients": CLIENTS, **changes})


@pytest.fixture(scope="module")
def pair(postgres, tmp_path_factory):
    """Two replicas and two clients, led by hand, that take part in every round."""
    plan, url = full_plan(rounds=ENDLESS, C=0.25), database(postgres, "pair")
    with Replicas(tmp_path_factory.mktemp("pair"), plan, 2, url, "--min-clients", "2", clients=0) as fleet:
        fleet.enrol(2)
        yield fleet


def row_of(fleet, round):
    """The row of a round, once it is committed."""
    fleet.wait_for_round(round)
    with Store.open(fleet.url) as store:
        return store.committed()[round - 1]


def test_two_replicas_give_the_model_of_the_simulator(tmp_path, url):
    with Replicas(tmp_path, full_plan(rounds=3, uplink=2.0), 2, url) as fleet:
        fleet.check()
        gathered = [line for replica in fleet.replicas for line in replica.lines("gathered")]
        assert [line["replicas"] for line in gathered] == [2] * 3, "both have taken updates in each round"
        with Store.open(url) as store:
            rows = store.committed()
    largest = [row["simulated_s"] * 2e6 for row in rows]
    assert largest == pytest.approx([row["bytes_up"] / CLIENTS for row in rows], rel=0.01), "at 2 MB/s"


@needs_nginx
def test_restarts_kills_and_pauses_in_the_middle_of_rounds_change_nothing(tmp_path, url):
    """SCAFFOLD: clients keep something between rounds, so that an update that is trained twice would be another."""
    with Replicas(tmp_path, full_plan(rounds=ENDLESS, algorithm="scaffold"), 3, url, front=True) as fleet:
        fleet.wait_for_round(1)
        with fleet.held_open():
            for replica in fleet.replicas:
                assert replica.stop() == 0
                replica.start()
                replica.wait_for(lambda status: status["present"], "its first client")
        for device in fleet.devices:
            assert not device.lines("upload failed"), "restarts one by one fail nothing that a device does not repeat"
        assert not [line for replica in fleet.replicas for line in replica.lines("client reports")]
        with fleet.held_open():
            fleet.leader.kill()
        dead = next(replica for replica in fleet.replicas if not replica.alive)
        dead.start()
        wait_until(dead.status, "the restarted replica")
        with fleet.held_open():
            follower = next(replica for replica in fleet.replicas if replica is not fleet.leader)
            follower.kill()
            follower.start()
        with fleet.held_open():
            paused = fleet.leader
            os.kill(paused.pid, signal.SIGSTOP)
            wait_until(lambda: fleet.leader is not paused, "another leader")
            os.kill(paused.pid, signal.SIGCONT)
        fleet.check_so_far()


def trouble(fleet, kills, seed):
    """Replicas die and come back, are paused and go on, each at a moment of its own; the leader as often as others."""
    rng = random.Random(seed)
    for number in range(kills):
        replica = fleet.leader if number % 2 and fleet.leader else rng.choice(fleet.replicas)
        if number % 5 == 4:
            os.kill(replica.pid, signal.SIGSTOP)
            sleep(rng.choice((1.0, 4.0, 10.0)))
            os.kill(replica.pid, signal.SIGCONT)
        else:
            replica.kill()
            sleep(rng.uniform(0, 1))
            replica.start()
        reached = fleet.committed()
        sleep(rng.uniform(0, 2))
        fleet.wait_for_round(reached + 1)


@pytest.mark.slow
@needs_nginx
def test_fifty_kills_and_pauses(tmp_path, url):
    with Replicas(tmp_path, full_plan(rounds=ENDLESS, algorithm="scaffold"), 3, url, front=True) as fleet:
        fleet.wait_for_round(1)
        trouble(fleet, 50, 2)
        fleet.check_so_far()


@pytest.mark.alone
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_another_one_leads_within_five_seconds(tmp_path, url, how):
    with Replicas(tmp_path, full_plan(rounds=2), 3, url, clients=0) as fleet:
        wait_until(lambda: fleet.leader, "a leader")
        old, term, began = fleet.leader, fleet.leader.lines("leading")[-1]["term"], time()
        os.kill(old.pid, how)
        wait_until(lambda: fleet.leader is not old, "another leader")
        line = fleet.leader.lines("leading")[-1]
        assert line["term"] == term + 1
        assert datetime.fromisoformat(line["time"]).timestamp() - began < 5
        if how is signal.SIGSTOP:
            os.kill(old.pid, signal.SIGCONT)
            wait_until(lambda: old.lines("leads no more"), "the old leader to notice")


def test_a_request_is_taken_once_by_all_replicas_together(pair):
    first, second = pair.replicas
    hand = pair.hand(first, 0)
    hand.poll(0)
    body = b'{"eligible":{"charging":true,"unmetered":true,"idle":true},"holding":null,"wait_s":0.0}'
    headers = hand.link.signer.headers("POST", "/v1/poll", body)
    for replica, status in ((first, 200), (second, 401), (first, 401)):
        answer = httpx.post(f"{replica.url}/v1/poll", content=body, headers=headers)
        assert answer.status_code == status, answer.text
    assert answer.json()["error"] == "replayed"


def test_an_update_that_is_sent_to_two_replicas_counts_once(pair):
    first, second = pair.replicas
    hands, offers = pair.offers(first, first)
    assert not hands[0].upload(offers[0]).duplicate
    again = pair.hand(second, 0)
    assert again.upload(offers[0]).duplicate
    assert again.offered_nothing(), "who is told that it is in is not asked again at once"
    assert not hands[1].upload(offers[1]).duplicate
    row = row_of(pair, offers[0].round)
    assert (row["clients"], row["examples"]) == (2, 2.0)


def test_what_a_dead_replica_had_is_asked_for_again_and_counts_once(pair):
    dying = next(replica for replica in pair.replicas if replica is not pair.leader)
    staying = next(replica for replica in pair.replicas if replica is not dying)
    hands, offers = pair.offers(dying, staying)
    assert not hands[0].upload(offers[0]).duplicate
    dying.kill()
    mover = pair.hand(staying, 0)
    again = mover.offered()
    assert (again.round, again.attempt, again.model) == (offers[0].round, offers[0].attempt, offers[0].model)
    assert not mover.upload(again).duplicate
    assert not hands[1].upload(offers[1]).duplicate
    row = row_of(pair, offers[0].round)
    assert (row["clients"], row["examples"]) == (2, 2.0)
    assert staying.lines("replicas given up")
    dying.start()
    wait_until(dying.status, "the replica")


def test_strangers_are_told_nothing_by_what_replicas_ask_each_other(pair):
    for path in ("/internal/present", "/internal/rounds/1/0/sum"):
        assert httpx.get(pair.replicas[0].url + path).status_code == 401
        with pytest.raises(ServerRefused, match="no replica has this number"):
            pair.hand(pair.replicas[0], 0).link.fetch(path)


@contextmanager
def stopped(postgres):
    postgres.stop()
    yield
    postgres.start()


@contextmanager
def crashed(postgres):
    """Without a word: tables that are not logged are empty afterwards."""
    pid = int((Path(postgres.pgdata) / "postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGQUIT)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "its end")
    yield
    postgres.start()


#: How the database goes away and comes back, and whether what replicas share is lost by it.
FAULTS = {
    "stopped": (stopped, False),
    "crashed": (crashed, True),
    "failed over": (restarted_elsewhere, False),
    "out of connections": (out_of_connections, False),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_database_goes_away_and_comes_back(pair, postgres, fault):
    """One client has sent its update, and the other one tries to meanwhile: both count, once."""
    away, forgets = FAULTS[fault]
    hands, offers = pair.offers(*pair.replicas)
    assert not hands[0].upload(offers[0]).duplicate
    before = [len(replica.lines("the database is away")) for replica in pair.replicas]
    told = lambda event: [len(replica.lines(event)) for replica in pair.replicas]  # noqa: E731
    with ThreadPoolExecutor(1) as pool:
        with away(postgres):
            sending = pool.submit(hands[1].upload, offers[1])
            wait_until(lambda: all(now > was for now, was in zip(told("the database is away"), before, strict=True)),
                       "a word about it")  # fmt: skip
        if forgets:  # its claim is lost, and so is what it is part of
            assert not hands[0].upload(hands[0].offered()).duplicate
        sending.result(PATIENCE_S)
    row = row_of(pair, offers[0].round)
    assert (row["clients"], row["examples"]) == (2, 2.0)
    wait_until(lambda: told("the database is back") == told("the database is away"), "a word that it is back")
    for replica in pair.replicas:
        assert not [line for line in replica.lines() if "trace" in line]
        assert len(replica.lines("can not lead")) < 20, "told now and then, not at each try"


@pytest.mark.slow
def test_postgresql_is_gone_for_thirty_seconds(tmp_path, postgres, url):
    with Replicas(tmp_path, full_plan(rounds=ENDLESS), 2, url) as fleet:
        fleet.wait_for_round(2)
        with stopped(postgres):
            sleep(30)
        fleet.wait_for_another_round()
        fleet.check_so_far()


def test_a_new_version_brings_a_migration_while_the_old_one_serves(tmp_path, url, monkeypatch):
    """The new one is this process: its schema has a step more, which adds a column that can be null, and a table."""
    plan = full_plan(rounds=ENDLESS, C=0.25)
    with Replicas(tmp_path, plan, 2, url, "--min-clients", "2", clients=0) as fleet:
        fleet.enrol(2)
        for round in (1, 2):
            hands, offers = fleet.offers(*fleet.replicas)
            for hand, offer in zip(hands, offers, strict=True):
                assert not hand.upload(offer).duplicate
            fleet.wait_for_round(round)
            if round == 1:
                step = ("ALTER TABLE clients ADD COLUMN nickname TEXT", "CREATE TABLE nicknames (k BIGINT PRIMARY KEY)")
                monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, step])
                Store.open(url).close()
        old = fleet.replicas[0]
        assert old.stop() == 0
        old.start()
        assert old.ended() == 2
        assert "has schema 5; this version of fedavg knows schemas up to 4; update fedavg" in old.log.read_text()


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, ("--replica",), "--replica: got no --db"),
        ({}, ("--replica", "--db", "run.db"), "expected --db postgresql://"),
        ({"secagg": "complete:4:20"}, ("--replica", "--db", "postgresql://x"), "--replica: got a run with secagg"),
        ({}, ("--replica", "--db", "postgresql://x", "--anonymous"), "--replica: got a run with --anonymous"),
        ({"evaluate": "clients", "holdout": 0.3}, ("--replica", "--db", "postgresql://x"), "with evaluate = clients"),
        ({}, ("--replica-url", "http://127.0.0.1:1"), "--replica-url is for replicas"),
    ],
)
def test_what_replicas_can_not_do_is_refused_with_the_reason(tmp_path, changes, options, said):
    server = Server(tmp_path, full_plan(**changes), *options)
    server.start()
    try:
        assert server.ended() == 2
    finally:
        server.kill()
    assert said in server.log.read_text()
    assert "Traceback" not in server.log.read_text()


def test_a_server_that_is_alone_and_replicas_refuse_each_other(tmp_path, url):
    with Replicas(tmp_path, full_plan(rounds=2), 1, url, clients=0) as fleet:
        alone = Server(tmp_path, fleet.plan, "--db", url)
        alone.start()
        assert alone.ended() == 2
        assert "only one server may own a run" in alone.log.read_text()
        (replica,) = fleet.replicas
        replica.kill()
        alone.start()
        wait_until(alone.status, "the server that is alone")
        replica.start()
        assert replica.ended() == 2
        assert "in use by a server that is no replica" in replica.log.read_text()
        with suppress(Exception):
            alone.kill()
