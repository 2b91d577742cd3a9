"""Failures do not spin: the server pauses between attempts, clients that fail rest, and reasons say what it was."""

import json
from itertools import pairwise
from time import monotonic

import numpy as np
import pytest

from fedavg.fleets.http.server import hub as hubs
from fedavg.fleets.http.server.conduct import GROWTH, LONGEST_S, Conduct
from fedavg.fleets.http.server.hub import pause_after
from fedavg.fleets.http.server.rounds import Rules
from fleet_peers import NUMBERS, fleet_plan, serving, until


def fail(peer, offer, reason="training-failed"):
    body = {"round": offer["round"], "attempt": offer["attempt"], "kind": "failed", "reason": reason, "blames": None,
            "detail": ""}  # fmt: skip
    return peer.signed("POST", "/v1/report", json.dumps(body).encode())


def test_each_failure_in_a_row_doubles_the_time_between_attempts():
    assert [pause_after(n, 0.0, 600.0) for n in range(1, 10)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert pause_after(9, 0.0, 10.0) == 10.0  # never longer than an attempt may take
    assert pause_after(4, 1.5, 600.0) == 2.5
    assert pause_after(9, 10.0, 10.0) == 0.0  # one that was waited for to the end has been pause enough


def test_abandoned_attempts_come_further_and_further_apart_until_one_succeeds(tmp_path, monkeypatch, caplog):
    """Whoever failed is called back where nobody else is there, so that attempts go on."""
    caplog.set_level("INFO")
    monkeypatch.setattr(hubs, "FIRST_PAUSE_S", 0.4)
    monkeypatch.setattr("fedavg.fleets.http.server.fleet.CALL_BACK_S", 0.05)
    with serving(tmp_path, fleet_plan(rounds=2), rules=Rules(deadline_s=60), minimum=1) as server:
        peer = server.peer(10)
        for attempt in range(4):
            offer = until(lambda n=attempt: (o := peer.offer())["attempt"] == n and o)
            assert fail(peer, offer).status == 200
        offer = peer.offer()
        assert peer.upload(offer, peer.frame(offer, np.ones(NUMBERS), 10.0)).json["accepted"]
        until(lambda: server.metrics()["fedavg_attempts_failed"] == 0)
        assert server.metrics()["fedavg_attempts_abandoned_total"] == 4
        peer.close()
    began = [record.created for record in caplog.records if record.message == "collecting"]
    for failures, (first, second) in enumerate(pairwise(began[:5])):
        assert second - first >= 0.4 * 2**failures - 0.05


def test_a_server_that_pauses_stops_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(hubs, "FIRST_PAUSE_S", 60.0)
    with serving(tmp_path, fleet_plan(rounds=2), rules=Rules(deadline_s=120), minimum=1) as server:
        peer = server.peer(10)
        fail(peer, peer.offer())
        until(lambda: server.metrics()["fedavg_attempts_failed"] == 1)
        peer.close()
        began = monotonic()
    assert monotonic() - began < 30


def test_a_client_that_fails_again_and_again_rests_longer_each_time_and_others_do_the_work(tmp_path):
    with serving(tmp_path, fleet_plan(rounds=4, C=1.0), rules=Rules(deadline_s=3, quorum=0.4), minimum=1) as server:
        good, bad = server.peer(10), server.peer(10)
        good.poll(), bad.poll()
        until(lambda: bad.offer())
        fail(bad, bad.offer())
        for _ in range(3):  # the rounds go on without it
            offer = good.offer()
            assert good.upload(offer, good.frame(offer, np.ones(NUMBERS), 10.0)).json["accepted"]
            assert bad.poll().json["type"] == "wait"
        until(lambda: server.status()["committed"] >= 3)
        rows = {row["client"]: row for row in server.admin("GET", "/admin/clients").json["clients"]}
        assert (rows[bad.k]["state"], rows[bad.k]["failures"]) == ("resting", 1)
        assert rows[bad.k]["last_failure"] == "training-failed"
        good.close(), bad.close()


@pytest.mark.parametrize("strikes", [1, 2, 3, 12])
def test_the_nth_rest_is_four_times_the_one_before_up_to_a_day(strikes):
    conduct = Conduct(rest_s=10.0)
    for _ in range(strikes):
        conduct.strike([7], now=0.0)
    expected = min(10.0 * GROWTH ** (strikes - 1), LONGEST_S)
    assert conduct.rests(7, expected - 0.01)
    assert not conduct.rests(7, expected)


def test_reasons_are_specific():
    """No list of reasons that programs read has a word for what nobody looked at."""
    from fedavg.fleets.http.protocol.messages import PROBLEMS, REPORTS
    from fedavg.fleets.http.protocol.wire import UpdateFault

    for reason in (*PROBLEMS, *REPORTS, *map(str, UpdateFault)):
        assert reason not in ("unknown", "error", "failed", "other", "internal", "internal-error")
