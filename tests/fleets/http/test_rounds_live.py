"""Rounds over real sockets: late, duplicate and missing updates, clients that die and come back, an ordered stop."""

import random
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest
from harness import Clock, Fleet, Hand, serving
from tiny import FEW, SIZES, few_plan, tiny_plan

import fedavg
from fedavg.fleets.http.device.link import ServerRefused
from fedavg.fleets.http.protocol.messages import WaitAnswer, WorkOffer
from fedavg.fleets.http.server.store import Store

CLIENTS = len(SIZES)


def counted(server, round):
    with Store.open(server.directory / "fleet.db") as store:
        return sorted(store.counted(round).clients)


def test_a_duplicate_counts_once(tmp_path):
    with serving(tmp_path, tiny_plan(rounds=1, C=1.0), "--min-clients", "2") as server:
        a, b = Hand(server, 0), Hand(server, 1)
        b.poll(0)
        offer = a.offered()
        assert (a.upload(offer).duplicate, a.upload(offer).duplicate) == (False, True)
        assert server.status()["round"]["accepted"] == 1
        b.upload(b.offered())
        server.wait_for(lambda s: s["done"], "the round")
        assert a.upload(offer).duplicate, "whoever lost the answer is told again that it is in"
        assert counted(server, 1) == [0, 1]


def test_a_client_learns_whether_its_update_counted_also_from_a_server_that_was_restarted(tmp_path):
    """Round 1 is committed at its deadline with the update of client 1 alone."""
    options = ("--min-clients", "2", "--deadline", "2", "--quorum", "0.5", "--linger", "60")
    with serving(tmp_path, tiny_plan(rounds=2, C=1.0), *options) as server:
        hands = [Hand(server, k) for k in range(2)]
        for hand in hands:
            hand.poll(0)
        first = [hand.offered() for hand in hands]
        assert hands[0].poll(0, first[0]).counted is None, "the round is open"
        hands[1].upload(first[1])
        server.wait_for(lambda s: s["committed"] == 1, "the deadline")
        later = replace(first[1], attempt=7)
        for _ in range(2):
            assert [hand.poll(0, offer).counted for hand, offer in zip(hands, first, strict=True)] == [False, True]
            assert hands[1].poll(0, later).counted is False, "another attempt than the one that was committed"
            assert hands[1].poll(0, replace(first[1], round=2)).counted is None
            assert hands[1].poll(0).counted is None, "nothing is held"
            server.wait_for(lambda s: s["round"]["round"] == 2, "client 0, which was silent, to be called back")
            server.kill()
            server.go_on(lambda s: s["round"], "round 2 again")


def test_a_straggler_is_not_waited_for_and_comes_back(tmp_path):
    """Of three, two make the quorum at the deadline; the third is late, and is in the next round."""
    options = ("--min-clients", "3", "--deadline", "2", "--quorum", "0.6")
    with serving(tmp_path, tiny_plan(rounds=2, C=1.0), *options) as server:
        hands = [Hand(server, k) for k in range(3)]
        for hand in hands:
            hand.poll(0)
        offers = [hand.offered() for hand in hands]
        for k in (0, 2):
            hands[k].upload(offers[k])
        server.wait_for(lambda s: s["committed"] == 1, "the deadline")
        with pytest.raises(ServerRefused, match="round-closed|wrong-round"):
            hands[1].upload(offers[1])
        again = hands[1].offered()
        assert (again.round, again.attempt) == (2, 0)
        for hand in hands:
            hand.upload(hand.offered() if hand is not hands[1] else again)
        server.wait_for(lambda s: s["done"], "the last round")
        assert counted(server, 1) == [0, 2]
        assert counted(server, 2) == [0, 1, 2]


def test_too_few_answers_and_the_round_is_tried_again(tmp_path):
    options = ("--min-clients", "3", "--deadline", "2", "--quorum", "1")
    with serving(tmp_path, tiny_plan(rounds=1, C=1.0), *options) as server:
        hands = [Hand(server, k) for k in range(3)]
        for hand in hands:
            hand.poll(0)
        first = [hand.offered() for hand in hands]
        hands[0].upload(first[0])
        server.wait_for(lambda s: s["round"]["attempt"] == 1, "the second attempt")
        with pytest.raises(ServerRefused, match="wrong-round"):
            hands[1].upload(first[1])
        for hand in hands:
            offer = hand.offered()
            assert (offer.round, offer.attempt) == (1, 1)
            hand.upload(offer)
        server.wait_for(lambda s: s["done"], "the round")
        assert counted(server, 1) == [0, 1, 2]
    (abandoned,) = server.lines("abandoned")
    assert abandoned["reason"] == "1 of 3 wanted updates came before the deadline; at least 3 are needed"


def test_with_over_selection_the_first_to_answer_count(tmp_path):
    """Two are wanted, so three are asked; the third is told that it is too late."""
    options = ("--min-clients", "4", "--over-selection", "1.5")
    with serving(tmp_path, tiny_plan(rounds=1, C=0.5), *options) as server:
        hands = [Hand(server, k) for k in range(4)]
        for hand in hands:
            hand.poll(0)
        server.wait_for(lambda s: s["round"], "the round")
        asked = [(hand, offer) for hand in hands if isinstance(offer := hand.poll(0), WorkOffer)]
        assert len(asked) == 3
        for hand, offer in asked[1:]:
            hand.upload(offer)
        with pytest.raises(ServerRefused, match="round-closed"):
            asked[0][0].upload(asked[0][1])
        server.wait_for(lambda s: s["done"], "the round")
        assert counted(server, 1) == sorted(hand.k for hand, _ in asked[1:])


def test_a_client_that_was_killed_while_it_waited_is_woken_when_it_is_back(tmp_path):
    """Its old poll is still held by the server, and ends first."""
    with serving(tmp_path, tiny_plan(rounds=1, C=1.0), "--min-clients", "2") as server, ThreadPoolExecutor() as pool:
        a = Hand(server, 0)
        killed = pool.submit(a.poll, 1.0)
        server.wait_for(lambda s: s["held_polls"] == 1, "the first poll")
        back = pool.submit(a.poll, 30.0)
        assert isinstance(killed.result(), WaitAnswer)
        server.wait_for(lambda s: s["held_polls"] == 1, "the second poll alone")
        b = Hand(server, 1)
        began = monotonic()
        b.poll(0)
        assert isinstance(back.result(), WorkOffer)
        assert monotonic() - began < 15, "it was woken and did not wait for the end of its poll"


def test_a_device_whose_update_is_refused_says_so_once(tmp_path):
    """Nobody waits for it, and it does not train the same again and again."""
    plan = tiny_plan(rounds=1, C=1.0)
    with Fleet(tmp_path, plan, 2, "--norm-bound", "1e-9", "--deadline", "20") as fleet:
        fleet.server.wait_for(lambda s: s["round"] and s["round"]["attempt"] == 1, "the second attempt")
        refused = fleet.server.status()["updates_refused"]["norm-exceeded"]
    (first, *_) = fleet.server.lines("abandoned")
    assert "2 of 2 clients failed or declined" in first["reason"]
    assert refused <= 4


def test_an_ordered_stop_parks_the_round(tmp_path):
    plan = few_plan(rounds=6)
    with Fleet(tmp_path, plan, len(FEW)) as fleet:
        fleet.server.wait_for(lambda s: s["committed"] >= 2, "round 2")
        began = monotonic()
        assert fleet.server.stop(30) == 0
        took = monotonic() - began
        assert "stopped by the operator; start the server again with the same database to continue" in (
            fleet.server.log.read_text()
        )
        fleet.server.start()
        assert fleet.finished()["model_sha256"] == fedavg.run(plan).summary.model_sha256
    print(f"stopped after {took:.1f} s")


def test_clocks_that_are_off_and_step_back_lock_nobody_out(tmp_path):
    """The server's clock is an hour ahead and steps two hours back; those of the devices are off as well."""
    plan, step = few_plan(rounds=20, C=1.0), tmp_path / "step"
    fleet = Fleet(tmp_path, plan, len(FEW), "--deadline", "60")
    fleet.server.clock = Clock(1.0, step)
    for device in fleet.devices:
        device.clock = Clock(1.0 - device.k % 3, step)
    with fleet:
        fleet.server.wait_for(lambda s: s["committed"] >= 2, "round 2")
        step.touch()
        summary = fleet.finished()
    assert summary["model_sha256"] == fedavg.run(plan).summary.model_sha256
    times = [datetime.fromisoformat(line["time"]) for line in fleet.server.lines()]
    assert min(later - earlier for earlier, later in pairwise(times)) < -timedelta(hours=1), "its clock did step back"
    assert fleet.server.lines("abandoned") == []


def test_only_logs_certificates_sightings_and_the_age_of_tokens_and_enrolments_look_at_the_wall_clock():
    folder = Path(fedavg.__file__).parent / "fleets/http"
    reads = re.compile(r"\btime\.time\b|\bfrom time import [^\n]*\btime\b|\bdatetime\b|\bgmtime\b|\blocaltime\b")
    found = {path.name for path in folder.rglob("*.py") if reads.search(path.read_text())}
    assert found == {"certs.py", "logs.py", "app.py", "admin.py", "roles.py", "sightings.py"}


@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_in_every_round_a_third_of_the_clients_is_killed(tmp_path, rounds):
    """Over-selection and the deadline get every round committed; the dead come back while others work."""
    options = ("--over-selection", "1.5", "--deadline", "3")
    rng = random.Random(rounds)
    with Fleet(tmp_path, tiny_plan(rounds=rounds), CLIENTS, *options) as fleet:
        for round in range(1, rounds + 1):
            fleet.server.wait_for(lambda s, r=round: s["committed"] >= r - 1, f"round {round - 1}")
            victims = rng.sample(fleet.devices, round_up(0.3 * CLIENTS))
            for device in victims:
                device.kill()
            for device in victims:
                device.start(fleet.token)
        summary = fleet.finished()
    assert summary["rounds"] == rounds
    assert [line["round"] for line in fleet.server.lines("committed")] == list(range(1, rounds + 1))


def round_up(number: float) -> int:
    return -int(-number // 1)
