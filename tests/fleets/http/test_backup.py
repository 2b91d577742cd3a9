"""A server is copied while it runs, lost, and made anew from the copy, in files and in PostgreSQL."""

import json
import shutil
from hashlib import sha256

import numpy as np
import pytest
from operated import operating, plan, train
from postgres import database
from schemas.make import PRIVATE

from fedavg.errors import FleetError
from fedavg.fleets.http.server.store import ChangeLog, Store
from fedavg.programs.backup import back_up, restore
from fleet_peers import NUMBERS, until


@pytest.fixture(params=["sqlite", "postgresql"])
def places(request, postgres, url):
    """The database of the server that is lost, and of the one that is restored."""
    if request.param == "sqlite":
        return None, None
    name = f"restored_{request.node.callspec.id}_{abs(hash(request.node.name)) % 10**9}"
    return url, database(postgres, name.replace("-", "_"))


def extend_to(service, rounds):
    service.change(1, "extend", {"rounds": rounds, "lr": None, "from_round": None})


def test_a_restored_service_goes_on_and_takes_no_number_again(tmp_path, places):
    before, after = places
    with operating(tmp_path / "lost", database=before, keep_rounds=5) as service:
        peer = service.peer(10)
        service.submit(plan(rounds=4))
        train(peer, 2)
        parked = until(lambda: (o := peer.offer())["round"] == 3 and o)
        made = back_up(tmp_path / "copy", tmp_path / "lost", before)
        train(peer, 1)
        late = service.peer(10)  # enrolled after the copy
        used = peer.signer.headers("POST", "/v1/poll", b"{}")
        peer.close(), late.close()
    assert made.runs == [1]
    shutil.rmtree(tmp_path / "lost")
    restore(tmp_path / "copy", tmp_path / "new", after)
    with operating(tmp_path / "new", database=after, new_admin_token=True) as service:
        assert service.ask("POST", "/v1/poll", b"{}", used).error == "stale-epoch"  # nothing from before is replayed
        peer._port = late._port = service.port
        assert late.poll().error == "bad-signature"
        again = until(lambda: (o := peer.offer())["round"] == 3 and o)
        assert again["attempt"] > parked["attempt"] + 100
        refused = peer.upload(parked, peer.frame(parked, np.ones(NUMBERS), 10.0))
        assert refused.status >= 400
        train(peer, 2)
        until(lambda: service.state(1) == "done")
        assert service.submit(plan(seed=2)).json == {"run": 1000}
        peer.close(), late.close()
        (change,) = service.admin("GET", "/admin/runs/1/ledger").json["changes"]
        assert (change["what"], change["after_round"]) == ("restored", 2)
        assert change["entry"] == {"copy_of": made.made, "nothing_since": False}


def test_a_private_run_does_not_go_on_from_an_older_copy(tmp_path, places):
    """What was released after the copy is on no record: a budget that went back would promise too much."""
    before, after = places
    with operating(tmp_path / "lost", database=before) as service:
        peer = service.peer(10)
        service.submit(plan(rounds=3, **PRIVATE))
        peer.offer()
        back_up(tmp_path / "copy", tmp_path / "lost", before)
        peer.close()
    restore(tmp_path / "copy", tmp_path / "new", after)
    with operating(tmp_path / "new", database=after, new_admin_token=True) as service:
        until(lambda: service.state(1) == "failed")
        assert "not on record" in service.runs()[0]["detail"]
        service.change(1, "go-on")
        until(lambda: service.state(1) == "failed")


def test_a_private_run_goes_on_if_nothing_has_run_since_the_copy(tmp_path):
    with operating(tmp_path / "old") as service:
        peer = service.peer(10)
        service.submit(plan(rounds=2, **PRIVATE))
        offer = peer.offer()
        peer.upload(offer, peer.frame(offer, np.ones(NUMBERS), 1.0, metrics={}))
        until(lambda: peer.offer()["round"] == 2)
        peer.close()
    back_up(tmp_path / "copy", tmp_path / "old")
    restore(tmp_path / "copy", tmp_path / "new", nothing_since=True)
    with operating(tmp_path / "new", new_admin_token=True) as service:
        peer._port = service.port
        offer = peer.offer()
        assert (offer["round"], offer["attempt"]) == (2, 0)  # the very attempt that was under way
        peer.upload(offer, peer.frame(offer, np.ones(NUMBERS), 1.0, metrics={}))
        until(lambda: service.state(1) == "done")
        found = service.admin("GET", "/admin/runs/1/ledger").json
        assert [row["releases"] for row in found["ledger"]] == [1, 2]
        peer.close()


def test_an_older_database_beside_newer_records_is_refused(tmp_path):
    """Put in place by hand, without `fedavg restore`: the run's own records know better."""
    with operating(tmp_path / "one") as service:
        peer = service.peer(10)
        service.submit(plan(rounds=4))
        train(peer, 1)
        until(lambda: peer.offer()["round"] == 2)
        back_up(tmp_path / "copy", tmp_path / "one")
        train(peer, 1)
        until(lambda: peer.offer()["round"] == 3)
        peer.close()
    place = tmp_path / "one" / "runs" / "1"
    for file in place.glob("fleet.db*"):
        file.unlink()
    shutil.copy(tmp_path / "copy" / "runs" / "1" / "fleet.db", place / "fleet.db")
    with operating(tmp_path / "one") as service:
        until(lambda: service.state(1) == "failed")
        assert "an older copy" in service.runs()[0]["detail"]


def test_a_copy_that_is_damaged_or_a_place_that_is_not_empty_is_refused(tmp_path):
    with operating(tmp_path / "one") as service:
        service.submit(plan())
    back_up(tmp_path / "copy", tmp_path / "one")
    assert (tmp_path / "copy" / "fleet.db").stat().st_mode & 0o77 == 0
    with pytest.raises(FleetError, match="not empty; expected a new folder"):
        back_up(tmp_path / "copy", tmp_path / "one")
    with pytest.raises(FleetError, match="not empty; expected a new run directory"):
        restore(tmp_path / "copy", tmp_path / "one")
    with pytest.raises(FleetError, match="not a copy of a server"):
        restore(tmp_path / "one", tmp_path / "new")
    content = bytearray((tmp_path / "copy" / "fleet.db").read_bytes())
    content[5000] ^= 1
    (tmp_path / "copy" / "fleet.db").write_bytes(content)
    with pytest.raises(FleetError, match="damaged or missing"):
        restore(tmp_path / "copy", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("outside", ["../stranger", "{tmp}/stranger", "runs/../../stranger"])
def test_a_copy_that_names_files_outside_itself_is_refused(tmp_path, outside):
    with operating(tmp_path / "run"):
        back_up(tmp_path / "copy", tmp_path / "run")
    (tmp_path / "stranger").write_bytes(b"")
    manifest = json.loads((tmp_path / "copy" / "backup.json").read_text())
    manifest["files"][outside.format(tmp=tmp_path)] = sha256(b"").hexdigest()
    (tmp_path / "copy" / "backup.json").write_text(json.dumps(manifest))
    with pytest.raises(FleetError, match="expected only files inside"):
        restore(tmp_path / "copy", tmp_path / "deep" / "er" / "new")


def test_a_copy_holds_no_token(tmp_path):
    with operating(tmp_path / "one") as service:
        secrets = [service.admin_token, service.join_token]
        back_up(tmp_path / "copy", tmp_path / "one")
    for file in (tmp_path / "copy").rglob("*"):
        if file.is_file():
            assert not any(secret.encode() in file.read_bytes() for secret in secrets)


def test_a_run_goes_back_to_an_earlier_round_and_its_ledger_says_so(tmp_path):
    with operating(tmp_path, keep_rounds=5) as service:
        peer = service.peer(10)
        service.submit(plan(rounds=4))
        train(peer, 4)
        until(lambda: service.state(1) == "done")
        digests = [json.loads(line)["digest"] for line in metrics(tmp_path)]
        assert service.change(1, "rollback", {"to_round": 4}).error == "storage-refused"  # it is there already
        assert len(metrics(tmp_path)) == 4
        assert service.change(1, "rollback", {"to_round": 2}).status == 200
        assert service.state(1) == "paused"
        assert [json.loads(line)["digest"] for line in metrics(tmp_path)] == digests[:2]
        assert peer.signed("GET", "/v1/models/latest").status == 404  # that of round 4 is no more the run's
        service.change(1, "go-on")
        offer = peer.offer()
        assert (offer["round"], offer["attempt"]) == (3, 1)
        train(peer, 2, by=2.0)
        until(lambda: service.state(1) == "done")
        (change,) = service.admin("GET", "/admin/runs/1/ledger").json["changes"]
        assert (change["what"], change["after_round"], change["entry"]["to_round"]) == ("rolled back", 4, 2)
        peer.close()


def test_a_run_that_went_back_keeps_what_it_has_spent(tmp_path):
    with operating(tmp_path, keep_rounds=5) as service:
        peer = service.peer(10)
        service.submit(plan(rounds=3, **PRIVATE))
        spend(peer, 3)
        until(lambda: service.state(1) == "done")
        service.change(1, "rollback", {"to_round": 1})
        service.change(1, "go-on")
        spend(peer, 2)
        until(lambda: service.state(1) == "done")
        found = service.admin("GET", "/admin/runs/1/ledger").json
        assert [(row["round"], row["releases"]) for row in found["ledger"]] == [(1, 1), (2, 4), (3, 5)]
        assert [row["releases"] for row in found["changes"][0]["entry"]["spent"]] == [2, 3]
        peer.close()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": "scaffold"}, "what devices keep between rounds"),
        ({"secagg": "complete:4:20", "clients": 3}, "a device opens one sum of a round"),
        ({"stages": ("weigh:equal", "localdp:4:0.5:delta=1e-3"), "clients": 3, "noise_source": "os", "dp_delta": 1e-3},
         "one update with noise of its own"),
    ],
)  # fmt: skip
def test_a_run_whose_devices_would_have_to_go_back_too_is_refused(tmp_path, changes, reason):
    with operating(tmp_path, minimum=3) as service:
        service.submit(plan(rounds=3, **changes))
        until(lambda: service.state(1) == "running")
        assert service.change(1, "rollback", {"to_round": 0}).error == "run-refused"  # pause it first
        service.change(1, "pause")
        until(lambda: service.state(1) == "paused")
        answer = service.change(1, "rollback", {"to_round": 0})
        assert answer.error == "run-refused"
        assert reason in answer.json["detail"]


def test_extensions_are_in_the_ledger_of_their_run(tmp_path):
    with operating(tmp_path) as service:
        peer = service.peer(10)
        service.submit(plan(rounds=1))
        train(peer, 1)
        until(lambda: service.state(1) == "done")
        extend_to(service, 2)
        train(peer, 1)
        until(lambda: service.state(1) == "done")
        service.change(1, "extend", {"rounds": 4, "lr": 0.5, "from_round": 4})
        train(peer, 2)
        until(lambda: service.state(1) == "done")
        peer.close()
    with Store.open(tmp_path / "runs" / "1" / "fleet.db") as store:
        noted = ChangeLog(store.connections).all()
        assert store.run().plan_digest == noted[1].entry["plan"]
    assert [(each.what, each.after_round, each.by) for each in noted] == [
        ("extended", 1, "operator"), ("extended", 2, "operator"),
    ]  # fmt: skip
    assert [{name: each.entry.get(name) for name in ("rounds", "lr", "from_round")} for each in noted] == [
        {"rounds": 2, "lr": None, "from_round": None},
        {"rounds": 4, "lr": 0.5, "from_round": 4},
    ]


def metrics(directory):
    return (directory / "runs" / "1" / "metrics.jsonl").read_text().splitlines()


def spend(peer, rounds):
    """Take part in so many rounds of a private run."""
    for _ in range(rounds):
        offer = peer.offer()
        assert peer.upload(offer, peer.frame(offer, np.ones(NUMBERS), 1.0, metrics={})).json["accepted"]
