"""What one client, or a crowd of them, tries against a server and its run; each over a real socket on a real server."""

import json
from time import sleep

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from fedavg.cli import cli
from fedavg.fleets.http.server.hub import Guards
from fedavg.fleets.http.server.store import Store
from fedavg.fleets.http.server.store import rows as store_rows
from fleet_peers import EVERYONE, HOST, NUMBERS, Peer, fleet_plan, serving

ONES = np.ones(NUMBERS)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server that waits for more clients than ever come: no round is under way."""
    with serving(tmp_path_factory.mktemp("served") / "run", minimum=10_000) as server:
        yield server


def operate(server, *arguments):
    """A command of the operator's against this server; what it printed."""
    url, token = f"http://{HOST}:{server.port}", str(server.directory / "admin-token")
    command, *more = arguments
    done = CliRunner().invoke(cli, [command, url, "--admin-token-file", token, *more], catch_exceptions=False)
    return done.output


# Strangers


def test_enrolled_revoked_and_unknown_numbers_look_alike_to_strangers(served):
    enrolled, revoked, stranger = served.peer(), served.peer(), Peer(served.port)
    served.revoke(client=revoked.k)
    stranger.signer.epoch = enrolled.signer.epoch
    answers = []
    for number in (enrolled.k, revoked.k, 9999, 2**40):
        headers = stranger.signer.headers("POST", "/v1/poll", b"{}") | {"FedAvg-Client": str(number)}
        answer = served.ask("POST", "/v1/poll", b"{}", headers)
        answers.append((answer.status, answer.body, sorted(answer.headers)))
    assert answers[0][0] == 401
    assert len(set(map(str, answers))) == 1
    assert revoked.poll().error == "revoked"  # who has the key is told


def test_an_escape_in_a_path_does_not_reach_the_operators_endpoints(served):
    headers = {"Authorization": f"Bearer {served.admin_token}"}
    assert served.ask("GET", "/admin/status", None, headers).status == 200
    for path in ("/admin%2fstatus", "/admin%2Fstatus", "/%61dmin/status", "/admin/%73tatus", "/v1/..%2fadmin/status"):
        answer = served.ask("GET", path, None, headers)
        assert (answer.status, answer.error) == (404, "no-such-path"), path


def test_a_full_fleet_is_a_clear_refusal(served, monkeypatch):
    monkeypatch.setattr(store_rows, "MOST_CLIENTS", 0)
    answer = Peer(served.port).enrol(served.join_token)
    assert (answer.status, answer.error) == (409, "fleet-full")


# Tokens and revocation


def test_the_first_join_token_is_counted_and_expires(tmp_path):
    with serving(tmp_path / "run", fleet_plan(clients=2), minimum=9) as server:
        (row,) = server.admin("GET", "/admin/tokens").json["tokens"]
        assert (row["uses_left"], row["used"]) == (2, 0)
        assert 167 < row["expires_in_h"] <= 168
        for _ in range(2):
            server.peer()
        assert Peer(server.port).enrol(server.join_token).error == "token-used"
    with serving(tmp_path / "late", minimum=9, join_hours=1e-9) as server:
        assert Peer(server.port).enrol(server.join_token).error == "token-expired"


def test_tokens_expire_are_listed_and_withdrawn(served):
    token = operate(served, "token", "--uses", "2", "--hours", "1", "--label", "the lab").strip()
    served.peer(token=token)
    listed = operate(served, "token", "--list")
    (line,) = [line for line in listed.splitlines() if line.endswith("the lab")]
    identity, used, left, expires, *_ = line.split()
    assert (used, left) == ("1", "1")
    assert 0.9 < float(expires) <= 1
    assert token not in listed
    assert "is withdrawn" in operate(served, "token", "--withdraw", identity)
    assert Peer(served.port).enrol(token).error == "token-unknown"
    assert identity not in operate(served, "token", "--list")
    assert Peer(served.port).enrol(served.new_token(hours=1e-9)).error == "token-expired"
    assert served.admin("POST", f"/admin/tokens/{identity}/withdraw").error == "token-unknown"


def test_clients_are_revoked_by_token_by_address_and_by_age(served):
    token = served.new_token(uses=3)
    crowd, other = [served.peer(token=token) for _ in range(3)], served.peer()
    identity = next(row["token"] for row in served.admin("GET", "/admin/clients").json["clients"]
                    if row["client"] == crowd[0].k)  # fmt: skip
    assert served.revoke(token=identity, older_than_h=1) == []  # none of them is so old: all must be true
    assert served.revoke(token=identity, address="10.0.0.0/8") == []
    revoked = operate(served, "revoke", "--token", identity, "--newer-than", "1", "--address", "127.0.0.0/8")
    assert revoked == f"revoked: {', '.join(str(peer.k) for peer in crowd)}\n"
    assert [peer.poll().error for peer in crowd] == ["revoked"] * 3
    assert other.poll().status == 200
    assert served.admin("POST", "/admin/clients/revoke", EVERYONE).error == "bad-field"  # nothing said is not all
    assert served.admin("POST", "/admin/clients/revoke", EVERYONE | {"address": "x"}).error == "bad-field"
    assert other.poll().status == 200


def test_with_approval_nobody_is_invited_before_the_operator_says_so(tmp_path):
    with serving(tmp_path / "run", minimum=1, guards=Guards(approval=True)) as server:
        first, second = server.peer(), server.peer()
        assert [peer.poll(wait_s=0.5).json["type"] for peer in (first, second)] == ["wait", "wait"]
        assert server.status()["round"] is None
        assert operate(server, "approve", "--client", str(first.k)) == f"approved: {first.k}\n"
        assert "waiting" in operate(server, "status", "--clients")
        offer = first.offer()
        assert second.upload(offer, second.frame(offer, ONES, 10)).error == "not-invited"
        assert first.upload(offer, first.frame(offer, ONES, 10)).status == 200
    with Store.open(tmp_path / "run" / "fleet.db") as store:
        assert [row.approved for row in store.clients()] == [True, False]


# Memory


def test_a_message_of_a_session_is_judged_before_it_is_read(served):
    """Without secure aggregation there are no sessions; nothing of the body is read."""
    peer = served.peer()
    path = "/v1/rounds/1/0/session"
    headers = peer.signer.headers("PUT", path, bytes(10**6))
    peer.send(f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n".encode())
    peer.send("".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n")
    answer = peer.answer()  # before a single byte of the body was sent
    assert (answer.status, answer.error) == (404, "no-such-path")
    assert peer.signed("GET", path).error == "no-such-path"


def test_with_secure_aggregation_only_who_is_awaited_is_read(tmp_path):
    plan = fleet_plan(secagg="complete:1.0:100", rounds=3)
    with serving(tmp_path / "run", plan, minimum=3) as server:
        early = server.peer()
        assert early.signed("PUT", "/v1/rounds/1/0/session", bytes(1000)).error == "wrong-round"
        peers = [early, server.peer(), server.peer()]
        for peer in peers:
            peer.poll()
        for peer in peers:
            peer.offer()
        late = server.peer()
        assert late.signed("PUT", "/v1/rounds/1/0/session", bytes(1000)).error == "not-invited"
        assert early.signed("PUT", "/v1/rounds/1/0/session", bytes(10**7)).error == "too-large"
        assert early.signed("PUT", "/v1/rounds/1/0/session", bytes(1000)).error == "session-refused"


# Waiting


def test_a_revoked_client_does_not_stall_a_run_that_needs_a_cohort(tmp_path):
    """K = 4 and C = 0.5: two are a cohort. One of three is revoked; with one more, rounds go on."""
    with serving(tmp_path / "run", fleet_plan(clients=4, C=0.5, rounds=100)) as server:
        peers = [server.peer() for _ in range(3)]
        server.revoke(client=peers[0].k)
        for peer in peers[1:]:
            peer.poll()
        offers = [peer.offer() for peer in peers[1:]]
        assert [offer["round"] for offer in offers] == [1, 1]


def test_a_cohort_of_all_goes_on_without_who_was_revoked(tmp_path):
    with serving(tmp_path / "run", fleet_plan(clients=3, C=1.0, rounds=100)) as server:
        peers = [server.peer() for _ in range(3)]
        for peer in peers[1:]:
            peer.poll()
        sleep(0.3)
        assert server.status()["round"] is None  # the third may come yet
        server.revoke(client=peers[0].k)
        for peer in peers[1:]:
            assert peer.offer()["invited"] == 2


# Deployment


def test_the_server_of_the_compose_file_has_neither_the_authoritys_key_nor_a_password_in_its_arguments(request):
    compose = yaml.safe_load((request.config.rootpath / "deploy" / "compose.yaml").read_text())
    server = compose["services"]["server"]
    command = json.dumps(server["command"])
    assert "PASSWORD" not in command
    assert "fedavg@database" in command
    mounted = [volume.split(":")[0] for volume in server["volumes"]]
    assert {path for path in mounted if "certificates" in path} == {
        "./certificates/server.pem", "./certificates/server.key",
    }  # fmt: skip
