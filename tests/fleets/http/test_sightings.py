"""Who was seen when, and how clients do: by hand, and as the operator's command shows it."""

import json
from time import time

import numpy as np
from click.testing import CliRunner

from fedavg.cli import cli
from fedavg.fleets.http.server.rounds import Rules
from fedavg.fleets.http.server.sightings import Sightings
from fedavg.fleets.http.server.store import Store, StoreError
from fedavg.fleets.http.server.store.sightings import Sighting, SightingRows
from fleet_peers import HOST, NUMBERS, fleet_plan, serving, until


def test_failures_are_counted_until_an_update_counts(tmp_path, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("fedavg.fleets.http.server.sightings.time", lambda: clock[0])
    with Store.open(tmp_path / "run.db") as store:
        rows = SightingRows(store.connections)
        first = Sightings()
        first.rows = rows
        first.see(3, "fedavg/1.0")
        first.failed([3, 4], "late")
        first.failed([3], "out-of-time")
        assert first.all() == {3: Sighting(1000, "fedavg/1.0", 2, "out-of-time"), 4: Sighting(0, "", 1, "late")}
        second = Sightings()  # another process, or this one after a restart
        second.rows = rows
        second.failed([3], "late")
        assert second.all()[3] == Sighting(1000, "fedavg/1.0", 3, "late")
        second.counted([3])
        second.failed([4], "blocked")
        clock[0] = 1010.0
        second.see(3, "a\nb" + "x" * 100)
        assert second.all() == {
            3: Sighting(1010, "a?b" + "x" * 61, 0, ""),
            4: Sighting(0, "", 2, "blocked"),
        }
        assert rows.all() == second.all()


def test_a_client_that_only_polls_is_written_down_once_an_hour(tmp_path, monkeypatch):
    clock = [10_000.0]
    monkeypatch.setattr("fedavg.fleets.http.server.sightings.time", lambda: clock[0])
    with Store.open(tmp_path / "run.db") as store:
        sightings = Sightings()
        sightings.rows = SightingRows(store.connections)
        for clock[0] in (10_000.0, 10_030.0, 13_599.0):
            sightings.see(0, "v")
            sightings.keep()
        assert sightings.rows.all()[0].seen == 10_000
        assert sightings.all()[0].seen == 13_599  # this process knows better
        clock[0] = 13_600.0
        sightings.see(0, "v")
        sightings.keep()
        assert sightings.rows.all()[0].seen == 13_600


def test_what_the_database_did_not_take_is_written_later(tmp_path):
    class Away:
        def add(self, news):
            raise StoreError("away", retryable=True)

    with Store.open(tmp_path / "run.db") as store:
        sightings = Sightings()
        sightings.rows = Away()
        sightings.failed([1, 2], "late")
        sightings.keep()
        sightings.failed([1], "blocked")
        sightings.counted([2])
        sightings.rows = SightingRows(store.connections)
        sightings.keep()
        assert sightings.rows.all() == {1: Sighting(0, "", 2, "blocked"), 2: Sighting(0, "", 0, "")}


def test_the_operator_sees_who_is_there_who_failed_and_who_is_away(tmp_path, caplog):
    plan = fleet_plan(rounds=2)
    with serving(tmp_path, plan, rules=Rules(deadline_s=2.0, quorum=0.3), minimum=3) as server:
        (good, bad, mute), offers = server.cohort(10, 10, 10)
        good.upload(offers[0], good.frame(offers[0], np.ones(NUMBERS), 10.0))
        body = {"round": 1, "attempt": 0, "kind": "failed", "reason": "out-of-time", "blames": None, "detail": ""}
        bad.signed("POST", "/v1/report", json.dumps(body).encode(), {"User-Agent": "node/2"})
        until(lambda: server.status()["committed"] == 1)
        server.peer(5)
        rows = {row["client"]: row for row in server.admin("GET", "/admin/clients").json["clients"]}
        assert [(rows[k]["state"], rows[k]["failures"], rows[k]["last_failure"]) for k in range(4)] == [
            ("there", 0, ""), ("resting", 1, "out-of-time"), ("resting", 1, "late"), ("away", 0, ""),
        ]  # fmt: skip
        assert rows[3]["last_seen"] is None
        assert abs(rows[0]["last_seen"] - time()) < 60
        server.revoke(client=3)
        good.signed("POST", "/v1/poll", json.dumps(_poll(good)).encode(), {"User-Agent": "node/2"})
        options = [f"http://{HOST}:{server.port}", "--admin-token-file", str(tmp_path / "admin-token")]
        table = CliRunner().invoke(cli, ["clients", *options]).stdout.splitlines()
        assert table[0].split()[:6] == ["client", "last", "seen", "examples", "state", "failures"]
        assert [line.split()[0] for line in table[1:]] == ["0", "1", "2", "3"]
        assert "node/2" in table[1]
        assert "1 late" in table[3]
        assert "never" in table[4]
        assert "revoked" in table[4]
        shown = json.loads(CliRunner().invoke(cli, ["clients", *options, "--json"]).stdout)
        assert shown == server.admin("GET", "/admin/clients").json["clients"]
        for peer in (good, bad, mute):
            peer.close()
    missing = {record.client: record.reason for record in caplog.records if record.message == "client missing"}
    assert missing == {1: "out-of-time", 2: "late"}
    assert [(r.client, r.by) for r in caplog.records if r.message == "client revoked"] == [(3, "operator")]


def _poll(peer):
    eligible = {"charging": True, "unmetered": True, "idle": True}
    return {"eligible": eligible, "examples": 10, "holding": None, "run": peer.taken, "wait_s": 0}


def test_what_is_known_of_clients_outlives_the_server(tmp_path):
    plan = fleet_plan(rounds=2)
    with serving(tmp_path, plan, rules=Rules(deadline_s=1.0, quorum=0.3), minimum=2) as server:
        (good, mute), offers = server.cohort(10, 10)
        good.upload(offers[0], good.frame(offers[0], np.ones(NUMBERS), 10.0))
        until(lambda: server.status()["committed"] == 1)
        good.close(), mute.close()
    with serving(tmp_path, plan, minimum=2) as server:
        rows = server.admin("GET", "/admin/clients").json["clients"]
        assert [(row["state"], row["failures"], row["last_failure"]) for row in rows] == [
            ("away", 0, ""), ("away", 1, "late"),
        ]  # fmt: skip
        assert all(abs(row["last_seen"] - time()) < 600 for row in rows)
