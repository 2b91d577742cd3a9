"""One server of several processes: real replicas on a real PostgreSQL, killed, paused and cut off from it."""

import os
import random
import shutil
import signal
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from time import sleep, time

import httpx2 as httpx
import pytest
from harness import PATIENCE_S, DeviceProcess, Hand, Server, free_port, wait_until
from postgres import emptied, start_postgres
from tiny import DATA, SIZES, tiny_plan

import fedavg
from fedavg.cohorts import sample_cohort
from fedavg.fleets.http.device.link import ServerRefused
from fedavg.fleets.http.protocol.messages import Eligibility, PollRequest
from fedavg.fleets.http.protocol.strict import dump
from fedavg.fleets.http.server.store import Store, schema
from fedavg.setup import population_of, resolve_data

CLIENTS = len(SIZES)
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="needs nginx (Debian: nginx-light)")
FRONT = Path(__file__).parents[3] / "deploy" / "nginx-fleet.conf"


@pytest.fixture(scope="module")
def postgres():
    server = start_postgres("fsync = off")
    yield server
    server.cleanup()


@pytest.fixture
def url(postgres):
    return emptied(postgres)


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

    @property
    def leader(self):
        """The replica that has begun to lead last."""
        began = [(line["term"], replica) for replica in self.replicas for line in replica.lines("leading")]
        return max(began, key=lambda pair: pair[0])[1] if began else None

    def committed(self):
        return max((replica.status() or {}).get("committed", 0) for replica in self.replicas)

    def wait_for_round(self, round):
        wait_until(lambda: self.committed() >= round, f"round {round}", 4 * PATIENCE_S)

    def check(self):
        """All have ended well, with the simulator's model; every client of each cohort counted, once."""
        for replica in self.replicas:
            assert replica.ended(4 * PATIENCE_S) == 0, replica.log.read_text()[-3000:]
            assert replica.summary()["model_sha256"] == simulated(self.plan)
            assert not [line for line in replica.lines() if "trace" in line]
        population = population_of(resolve_data(self.plan))
        with Store.open(self.url) as store:
            assert store.last_round() == self.plan.rounds
            for round in range(1, self.plan.rounds + 1):
                assert store.counted(round).clients == set(sample_cohort(self.plan, population, round))
        for device in self.devices:
            device.process.join(PATIENCE_S)
            assert device.process.exitcode == 0, device.log.read_text()[-2000:]


def full_plan(**changes):
    return tiny_plan(**{"C": 1.0, "clients": CLIENTS, **changes})


def test_two_replicas_give_the_model_of_the_simulator(tmp_path, url):
    with Replicas(tmp_path, full_plan(rounds=4, uplink=2.0), 2, url) as fleet:
        fleet.check()
        gathered = [line for replica in fleet.replicas for line in replica.lines("gathered")]
        assert [line["replicas"] for line in gathered] == [2] * 4, "both have taken updates in each round"
        with Store.open(url) as store:
            rows = store.committed()
    largest = [row["simulated_s"] * 2e6 for row in rows]
    assert largest == pytest.approx([row["bytes_up"] / CLIENTS for row in rows], rel=0.01), "at 2 MB/s"


def trouble(fleet, kills, seed):
    """Replicas die and come back, are paused and go on, each at a moment of its own; the leader as often as others."""
    rng, began = random.Random(seed), time()
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
        wait_until(lambda reached=reached: fleet.committed() > min(reached, fleet.plan.rounds - 1), "another round")
    return time() - began


@pytest.mark.slow  # with SCAFFOLD it waited in vain for a round, twice of two: not understood yet
@needs_nginx
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_replicas_behind_nginx_are_killed_and_paused(tmp_path, url, algorithm):
    with Replicas(tmp_path, full_plan(rounds=12, algorithm=algorithm), 3, url, front=True) as fleet:
        fleet.wait_for_round(1)
        trouble(fleet, 5, 1)
        fleet.check()


@pytest.mark.slow
@needs_nginx
def test_fifty_kills_and_pauses(tmp_path, url):
    with Replicas(tmp_path, full_plan(rounds=150, algorithm="scaffold"), 3, url, front=True) as fleet:
        fleet.wait_for_round(1)
        trouble(fleet, 50, 2)
        fleet.check()


@pytest.mark.alone
@needs_nginx
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_another_one_leads_within_five_seconds(tmp_path, url, how):
    with Replicas(tmp_path, full_plan(rounds=12), 3, url, front=True) as fleet:
        fleet.wait_for_round(2)
        old, term, began = fleet.leader, fleet.leader.lines("leading")[-1]["term"], time()
        os.kill(old.pid, how)
        wait_until(lambda: fleet.leader is not old, "another leader")
        line = fleet.leader.lines("leading")[-1]
        assert line["term"] == term + 1
        assert datetime.fromisoformat(line["time"]).timestamp() - began < 5
        reached = fleet.committed()
        wait_until(lambda: fleet.committed() > reached, "another round")
        if how is signal.SIGSTOP:
            os.kill(old.pid, signal.SIGCONT)
            wait_until(lambda: old.lines("leads no more"), "the old leader to notice")
        else:
            old.start()
        fleet.check()


def test_a_request_is_taken_once_by_all_replicas_together(tmp_path, url):
    with Replicas(tmp_path, full_plan(rounds=4), 2, url, clients=0) as fleet:
        first, second = fleet.replicas
        hand = Hand(first, 0) if (first.directory / "join-token").exists() else Hand(second, 0)
        hand.poll(0)
        body = dump(PollRequest(Eligibility(True, True, True), len(DATA.client(0)), None, 0.0))
        headers = hand.link.signer.headers("POST", "/v1/poll", body)
        for replica, status in ((first, 200), (second, 401), (first, 401)):
            answer = httpx.post(f"{replica.url}/v1/poll", content=body, headers=headers)
            assert answer.status_code == status, answer.text
        assert answer.json()["error"] == "replayed"


def test_an_update_that_is_sent_to_two_replicas_counts_once(tmp_path, url):
    plan = full_plan(rounds=1, C=0.25)
    with Replicas(tmp_path, plan, 2, url, "--min-clients", "2", clients=0) as fleet:
        first, second = sorted(fleet.replicas, key=lambda r: not (r.directory / "join-token").exists())
        hands = [Hand(first, k) for k in range(2)]
        for hand in hands:
            hand.poll(0)
        offers = [hand.offered() for hand in hands]
        assert not hands[0].upload(offers[0]).duplicate
        again = Hand(second, 0, hands[0].link.signer.key)
        assert again.upload(offers[0]).duplicate
        assert again.offered_nothing()
        assert not hands[1].upload(offers[1]).duplicate
        wait_until(lambda: fleet.committed() == 1, "the round")
    with Store.open(url) as store:
        assert store.committed()[0]["clients"] == 2


def test_what_a_dead_replica_had_is_asked_for_again_and_counts_once(tmp_path, url):
    plan = full_plan(rounds=1, C=0.25)
    with Replicas(tmp_path, plan, 2, url, "--min-clients", "2", clients=0) as fleet:
        maker = min(fleet.replicas, key=lambda r: not (r.directory / "join-token").exists())
        hands = [Hand(maker, k) for k in range(2)]
        for hand in hands:
            hand.poll(0)
        offers = [hand.offered() for hand in hands]
        dying = next(replica for replica in fleet.replicas if replica is not fleet.leader)
        staying = next(replica for replica in fleet.replicas if replica is not dying)
        assert not Hand(dying, 0, hands[0].link.signer.key).upload(offers[0]).duplicate
        dying.kill()
        mover = Hand(staying, 0, hands[0].link.signer.key)
        again = mover.offered()
        assert (again.round, again.attempt, again.model) == (offers[0].round, offers[0].attempt, offers[0].model)
        assert not mover.upload(again).duplicate
        assert not Hand(staying, 1, hands[1].link.signer.key).upload(offers[1]).duplicate
        staying.wait_for(lambda status: status["committed"] == 1, "the round")
        assert staying.lines("replicas given up")
    with Store.open(url) as store:
        assert (store.committed()[0]["clients"], store.committed()[0]["examples"]) == (2, 2.0)


def test_strangers_are_told_nothing_by_what_replicas_ask_each_other(tmp_path, url):
    with Replicas(tmp_path, full_plan(rounds=2), 1, url, clients=0) as fleet:
        (replica,) = fleet.replicas
        stranger = Hand(replica, 0)
        for path in ("/internal/present", "/internal/rounds/1/0/sum"):
            assert httpx.get(replica.url + path).status_code == 401
            with pytest.raises(ServerRefused, match="no replica has this number"):
                stranger.link.fetch(path)


@needs_nginx
def test_a_rolling_restart_fails_no_request_that_a_device_does_not_repeat(tmp_path, url):
    with Replicas(tmp_path, full_plan(rounds=12), 3, url, front=True) as fleet:
        fleet.wait_for_round(2)
        for replica in fleet.replicas:
            assert replica.stop() == 0
            replica.start()
            replica.wait_for(lambda status: status["present"] or status["done"], "its first client")
        fleet.check()
        for device in fleet.devices:
            assert not device.lines("upload failed")
        assert not [line for replica in fleet.replicas for line in replica.lines("client reports")]


def test_a_new_version_brings_a_migration_while_the_old_one_serves(tmp_path, url, monkeypatch):
    """The new one is this process: its schema has a step more, which adds a column that can be null, and a table."""
    with Replicas(tmp_path, full_plan(rounds=8), 2, url) as fleet:
        fleet.wait_for_round(2)
        step = ("ALTER TABLE clients ADD COLUMN nickname TEXT", "CREATE TABLE nicknames (k BIGINT PRIMARY KEY)")
        monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, step])
        Store.open(url).close()
        reached = fleet.committed()
        wait_until(lambda: fleet.committed() > reached or fleet.committed() == 8, "another round")
        fleet.check()
        old = fleet.replicas[0]
        old.start()
        assert old.ended() == 2
        assert "has schema 5; this version of fedavg knows schemas up to 4; update fedavg" in old.log.read_text()


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_postgresql_goes_away_and_comes_back(tmp_path, postgres, url, crash):
    """After a crash it has lost what replicas shared: clients sign anew, and send what they kept."""
    with Replicas(tmp_path, full_plan(rounds=8), 2, url) as fleet:
        fleet.wait_for_round(2)
        if crash:
            os.kill(int((Path(postgres.pgdata) / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
            sleep(3)
        else:
            postgres.stop()
            sleep(5)
        wait_until(lambda: all(r.lines("the database is away") for r in fleet.replicas), "a word about it")
        postgres.start()
        fleet.check()


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
