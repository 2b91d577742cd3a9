"""The trained model reaches the clients: under its digest, and as the latest one."""

from hashlib import sha256

import numpy as np
from safetensors.numpy import load_file

from fedavg.fleets.http.server.guards import Guards
from fleet_peers import NUMBERS, fleet_plan, serving, until


def done(peer):
    """Polls until the run is over."""
    return until(lambda: (answer := peer.poll(1.0).json)["type"] == "done" and answer, "for the end of the run")


def test_the_final_model_can_be_taken_away_by_clients_and_by_nobody_else(tmp_path):
    with serving(tmp_path, fleet_plan(rounds=1), linger_s=60) as server:
        (peer,), (offer,) = server.cohort(10)
        assert peer.signed("GET", "/v1/models/latest").error == "no-such-model"
        change = np.arange(NUMBERS) / NUMBERS
        assert peer.upload(offer, peer.frame(offer, change, 10.0)).json["accepted"]
        final = done(peer)["model"]

        latest = peer.signed("GET", "/v1/models/latest")
        assert (latest.status, latest.headers["fedavg-round"], latest.headers["etag"]) == (200, "1", f'"{final}"')
        assert sha256(latest.body).hexdigest() == final
        assert server.ask("GET", f"/v1/models/{final}").body == latest.body
        kept = {"If-None-Match": f'"{final}"'}
        assert peer.signed("GET", "/v1/models/latest", headers=kept).status == 304
        assert peer.signed("GET", "/v1/models/latest", headers={"Range": "bytes=4-7"}).body == latest.body[4:8]
        assert server.ask("GET", "/v1/models/latest").status == 401

        start = np.frombuffer(server.ask("GET", f"/v1/models/{offer['model']}").body, "<f4")
        trained = np.frombuffer(latest.body, "<f4")
        assert np.allclose(trained, start + change, atol=1e-6)
        peer.close()
    written = np.concatenate([each.ravel() for each in load_file(tmp_path / "model.safetensors").values()])
    assert sorted(written) == sorted(trained)


def test_the_model_of_every_round_is_there_if_the_operator_wants_it(tmp_path):
    with serving(tmp_path, fleet_plan(rounds=3), publish="rounds") as server:
        (peer,), (offer,) = server.cohort(10)
        peer.upload(offer, peer.frame(offer, np.ones(NUMBERS), 10.0))
        second = until(lambda: (o := peer.offer())["round"] == 2 and o)
        latest = peer.signed("GET", "/v1/models/latest")
        assert (latest.headers["fedavg-round"], sha256(latest.body).hexdigest()) == ("1", second["model"])


def test_a_model_is_kept_from_clients_that_wait_for_approval_and_if_none_is_to_be_published(tmp_path):
    with serving(tmp_path / "a", fleet_plan(rounds=1), linger_s=60, publish="none") as server:
        (peer,), (offer,) = server.cohort(10)
        peer.upload(offer, peer.frame(offer, np.ones(NUMBERS), 10.0))
        assert server.ask("GET", f"/v1/models/{done(peer)['model']}").error == "no-such-model"
        assert peer.signed("GET", "/v1/models/latest").error == "no-such-model"
        peer.close()
    with serving(tmp_path / "b", fleet_plan(rounds=1), publish="rounds", guards=Guards(approval=True)) as server:
        answer = server.peer(10).signed("GET", "/v1/models/latest")
        assert (answer.error, "approval" in answer.json["detail"]) == ("no-such-model", True)


def test_the_log_says_whose_update_was_refused_and_who_was_revoked(tmp_path, caplog):
    with serving(tmp_path, fleet_plan(rounds=2)) as server:
        (peer,), (offer,) = server.cohort(10)
        assert peer.upload(offer, peer.frame(offer, np.full(NUMBERS, np.nan), 10.0)).error == "not-finite"
        server.revoke(client=peer.k)
    lines = {record.getMessage(): vars(record) for record in caplog.records}
    refused = lines["update refused"]
    assert (refused["client"], refused["round"], refused["reason"]) == (peer.k, 1, "not-finite")
    assert lines["client revoked"]["client"] == peer.k


def test_the_operators_token_is_made_anew(tmp_path):
    with serving(tmp_path, fleet_plan(rounds=2)) as server:
        before = {"Authorization": f"Bearer {server.admin_token}"}
    with serving(tmp_path, fleet_plan(rounds=2), new_admin_token=True) as server:
        assert server.ask("GET", "/admin/status", headers=before).error == "admin-token"
        assert server.admin("GET", "/admin/status").status == 200
