"""One server of several processes: real replicas on a real PostgreSQL, killed, paused and cut off from it."""

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from time import sleep, time

import httpx2 as httpx
import pytest
from harness import PATIENCE_S, Server, wait_until
from postgres import crashed, database, out_of_connections, restarted_elsewhere, stopped
from several import DEVICES, ENDLESS, Replicas, devices_plan, full_plan, needs_nginx
from tiny import DATA

from fedavg.fleets.http.device.link import ServerRefused
from fedavg.fleets.http.protocol.messages import Eligibility, PollRequest
from fedavg.fleets.http.protocol.strict import dump
from fedavg.fleets.http.server.store import Store, schema
from fedavg.page.fleet import LiveFleet


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
    with Replicas(tmp_path, devices_plan(rounds=3, uplink=2.0), 2, url) as fleet:
        fleet.check()
        gathered = [line for replica in fleet.replicas for line in replica.lines("gathered")]
        assert [line["replicas"] for line in gathered] == [2] * 3, "both have taken updates in each round"
        with Store.open(url) as store:
            rows = store.committed()
    largest = [row["simulated_s"] * 2e6 for row in rows]
    assert largest == pytest.approx([row["bytes_up"] / DEVICES for row in rows], rel=0.01), "at 2 MB/s"


@needs_nginx
def test_restarts_kills_and_pauses_in_the_middle_of_rounds_change_nothing(tmp_path, url):
    """SCAFFOLD: clients keep something between rounds, so that an update that is trained twice would be another."""
    with Replicas(tmp_path, devices_plan(rounds=ENDLESS, algorithm="scaffold"), 3, url, front=True) as fleet:
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
    with Replicas(tmp_path, devices_plan(rounds=ENDLESS, algorithm="scaffold"), 3, url, front=True) as fleet:
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
            wait_until(lambda: old.lines("no longer leading"), "the old leader to notice")


def test_a_request_is_taken_once_by_all_replicas_together(pair):
    first, second = pair.replicas
    hand = pair.hand(first, 0)
    hand.poll(0)
    body = dump(PollRequest(Eligibility(True, True, True), len(DATA.client(0)), None, None, 0.0))
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

    def counts_again():  # until the dead one is given up, the update is said to be in its sum
        again = mover.offered()
        assert (again.round, again.attempt, again.model) == (offers[0].round, offers[0].attempt, offers[0].model)
        return not mover.upload(again).duplicate

    wait_until(counts_again, "the update to be asked for again")
    assert not hands[1].upload(offers[1]).duplicate
    row = row_of(pair, offers[0].round)
    assert (row["clients"], row["examples"]) == (2, 2.0)
    assert staying.lines("replicas dropped")
    dying.start()
    wait_until(dying.status, "the replica")


def test_any_replica_tells_of_all_of_them(pair):
    hands, offers = pair.offers(*pair.replicas)
    for hand, offer in zip(hands, offers, strict=True):
        hand.upload(offer)
    taken = lambda status: [each["updates_accepted"] for each in status["replicas"]]  # noqa: E731
    settled = lambda: [taken(status) for each in pair.replicas if (status := each.status())]  # noqa: E731
    wait_until(lambda: len(found := settled()) == 2 and found[0] == found[1] and all(found[0]), "the same word of all")
    for replica in pair.replicas:
        public = replica.status()
        assert public["updates_accepted"] == sum(taken(public))
        assert [each["leads"] for each in public["replicas"]].count(True) == 1
        assert len({each["name"] for each in public["replicas"]}) == 2
        assert all(each["heard_s_ago"] < PATIENCE_S and "url" not in each for each in public["replicas"])
        seen = LiveFleet(replica.url, pair.admin_token, None)  # as the page asks, of whichever replica
        seen.ask()
        shown = seen.answer()
        seen.stop()
        assert shown["problem"] is None
        assert {each["url"] for each in shown["status"]["replicas"]} == {each.url for each in pair.replicas}
        assert shown["status"]["present"] == shown["enrolled"] == 2


def test_strangers_are_told_nothing_by_what_replicas_ask_each_other(pair):
    for path in ("/internal/present", "/internal/rounds/1/0/sum"):
        assert httpx.get(pair.replicas[0].url + path).status_code == 401
        with pytest.raises(ServerRefused, match="no replica has this number"):
            pair.hand(pair.replicas[0], 0).link.fetch(path)


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
        assert len(replica.lines("cannot lead")) < 20, "told now and then, not at each try"


@pytest.mark.slow
def test_postgresql_is_gone_for_thirty_seconds(tmp_path, postgres, url):
    with Replicas(tmp_path, devices_plan(rounds=ENDLESS), 2, url) as fleet:
        fleet.wait_for_round(2)
        with stopped(postgres):
            sleep(30)
        fleet.wait_for_another_round()
        fleet.check_so_far()


def test_a_new_version_brings_a_migration_while_the_old_one_serves(tmp_path, url, monkeypatch):
    """The new one is this process: its schema has a step more, which adds a column that can be null, and a table."""
    plan, latest = full_plan(rounds=ENDLESS, C=0.25), len(schema.MIGRATIONS)
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
        assert (
            f"has schema {latest + 1}; this version of fedavg knows schemas up to {latest}; update fedavg"
            in old.log.read_text()
        )


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, ("--replica",), "--replica: got no --db"),
        ({}, ("--replica", "--db", "run.db"), "expected --db postgresql://"),
        ({"secagg": "complete:4:20"}, ("--replica", "--db", "postgresql://x"), "--replica: got a run with secagg"),
        ({}, ("--replica", "--db", "postgresql://x", "--anonymous"), "--replica: got a run with --anonymous"),
        ({"reducer": "median"}, ("--replica", "--db", "postgresql://x"), "got a run with a rule over single updates"),
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
