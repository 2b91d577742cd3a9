"""What one client, or a crowd of them, tries against a server and its run; each over a real socket on a real server."""

import json
import re
import threading
from dataclasses import replace
from time import sleep

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import load_file

from fedavg.cli import cli
from fedavg.engine.trainer import Trainer
from fedavg.errors import PlanError
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.rounds import Rules
from fedavg.fleets.http.server.store import Store
from fedavg.fleets.http.server.store import rows as store_rows
from fedavg.secagg import ClientAborted, ClientSession, answer
from fedavg.secagg import parse as parse_message
from fedavg.secagg.messages import SealedShares
from fedavg.secagg.options import make_masking
from fleet_peers import EVERYONE, HOST, NUMBERS, Peer, fleet_plan, serving, until
from toys import TOY, small_net

ONES = np.ones(NUMBERS)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server that waits for more clients than ever come: no round is under way."""
    with serving(tmp_path_factory.mktemp("served") / "run", minimum=10_000) as server:
        yield server


def operate(server, *arguments):
    """A command of the operator's against this server; what it printed as its answer."""
    url, token = f"http://{HOST}:{server.port}", str(server.directory / "admin-token")
    command, *more = arguments
    done = CliRunner().invoke(cli, [command, url, "--admin-token-file", token, *more], catch_exceptions=False)
    return done.stdout


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
    with serving(tmp_path / "run", fleet_plan(clients=2), minimum=2) as server:
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
    identity, what, used, left, expires, *_ = line.split()
    assert what == "joining"
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
        assert "waiting" in operate(server, "clients")
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


# What one client can do to a round


def model_change(directory, plan):
    """What was added to each number of the initial model."""
    saved = load_file(directory / "model.safetensors")
    flat = torch.cat([saved[name].flatten() for name, _ in small_net().named_parameters()])
    return flat - Trainer(TOY, plan.seed).weights


def test_no_client_leaves_others_no_room_in_the_sum(tmp_path):
    """A sum holds 2^31; of two clients neither may add more than 2^30 to a number."""
    with serving(tmp_path / "run", fleet_plan(rounds=2), minimum=2) as server:
        (bad, good), (offer, theirs) = server.cohort(5, 10)
        assert bad.upload(offer, bad.frame(offer, 3.3e38 * ONES, 6.5e-30)).error == "bad-weight"
        assert bad.upload(offer, bad.frame(offer, 4e8 * ONES, 5)).error == "share-exceeded"
        assert bad.upload(offer, bad.frame(offer, 2e8 * ONES, 5)).status == 200  # just below
        assert good.upload(theirs, good.frame(theirs, ONES, 10)).status == 200
        until(lambda: server.status()["committed"] == 1)


def test_a_round_whose_result_is_not_finite_is_rolled_back_and_its_culprit_rests(tmp_path):
    """The server's rate makes 1e32 of an honest update and infinity of a large one."""
    plan = fleet_plan(algorithm="fedavgm:momentum=0:lr=1e35", clients=3, rounds=2)
    with serving(tmp_path / "run", plan) as server:
        peers, offers = server.cohort(10, 10, 10)
        for peer, offer, value in zip(peers, offers, (1e-3, 1e-3, 1e7), strict=True):
            assert peer.upload(offer, peer.frame(offer, value * ONES, 10)).status == 200
        until(lambda: server.status()["resting"] == 1)
        offers = [peer.offer() for peer in peers[:2]]
        assert [(offer["round"], offer["attempt"], offer["invited"]) for offer in offers] == [(1, 1, 2), (1, 1, 2)]
        assert peers[2].poll().json["type"] == "wait"
        for peer, offer in zip(peers, offers, strict=False):
            assert peer.upload(offer, peer.frame(offer, 1e-3 * ONES, 10)).status == 200
        until(lambda: server.status()["committed"] == 1)
    with Store.open(tmp_path / "run" / "fleet.db") as store:
        assert store.counted(1).clients == {peers[0].k, peers[1].k}
    (row,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    json.loads(row, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_no_client_counts_for_more_than_a_multiple_of_the_median(tmp_path):
    """n_k of 10, 10 and 2^31: the third counts 5 times 10, so that its zeros leave (10 + 10) / (10 + 10 + 50)."""
    plan = fleet_plan(rounds=1)
    with serving(tmp_path / "run", plan, minimum=3, linger_s=10.0) as server:
        peers, offers = server.cohort(10, 10, 2**31)
        for peer, offer, value, weight in zip(peers, offers, (1, 1, 0), (10, 10, 1e6), strict=True):
            assert peer.upload(offer, peer.frame(offer, value * ONES, weight)).status == 200
        until(lambda: server.status()["done"])
        assert server.status()["updates_capped"] == 1
    assert torch.allclose(model_change(tmp_path / "run", plan), torch.tensor(20 / 70), atol=1e-6)


def test_every_number_that_a_client_reports_has_a_bound(tmp_path):
    """Ten examples in batches of 4 are 3 steps; no loss is a thousand times that of the untrained model."""
    with serving(tmp_path / "run", fleet_plan(algorithm="fednova", rounds=1), minimum=2, linger_s=10.0) as server:
        (peer, other), (offer, theirs) = server.cohort(10, 10)
        for metrics in ({"tau": 4}, {"tau": 0}, {"tau": -1e12}, {"train_loss": 1e11}, {"train_loss": -1e11}):
            frame = peer.frame(offer, ONES, 10, metrics={"train_loss": 0.5, "tau": 3} | metrics)
            assert peer.upload(offer, frame).error == "bad-metrics", metrics
        for each, of in ((peer, offer), (other, theirs)):
            assert each.upload(of, each.frame(of, ONES, 10, metrics={"train_loss": 0.5, "tau": 3})).status == 200
        until(lambda: server.status()["done"])


def work_honestly(peers, stop):
    while not stop.is_set():
        for peer in peers:
            answer = peer.poll().json
            if answer.get("type") == "work":
                peer.upload(answer, peer.frame(answer, ONES, 10))
            sleep(0.05)


def test_a_crowd_of_the_mute_does_not_stop_a_run(tmp_path):
    """Two of twenty answer, and both are needed: by lot alone they meet in one attempt of 190."""
    rules = Rules(deadline_s=1.0, quorum=1.0)
    with serving(tmp_path / "run", fleet_plan(clients=20, C=0.1, rounds=2), rules=rules, linger_s=10.0) as server:
        crowd, honest = [server.peer() for _ in range(18)], [server.peer() for _ in range(2)]
        stop = threading.Event()
        working = threading.Thread(target=work_honestly, args=(honest, stop))
        working.start()
        try:
            for peer in crowd:
                peer.poll()
            until(lambda: server.status()["done"], "for two rounds among the mute")
        finally:
            stop.set()
            working.join()


# Secure aggregation with one who does not keep to it

SECURE = fleet_plan(secagg="complete:1.0:100", clients=5, rounds=3)


class Masked:
    """A client in a session, led by hand; `ring` is what it masks, `spoil` what it does to its answers."""

    def __init__(self, peer, offer, ring, spoil=lambda reply: reply):
        masking = make_masking(SECURE.secagg)
        session = bytes.fromhex(offer["session"])
        terms = masking.terms(session, offer["round"], offer["model"], offer["invited"], NUMBERS, {"train_loss"})
        self.peer, self.offer, self._ring, self._spoil = peer, offer, ring(terms.encoding), spoil
        self.session = ClientSession(terms, peer.k)
        self._path = f"/v1/rounds/{offer['round']}/{offer['attempt']}/session"
        self._put(self.session.advertise())

    def _put(self, message):
        return self.peer.signed("PUT", self._path, self._spoil(message).to_bytes())

    def step(self):
        """Answers the message that waits, if one does; whoever leaves says so, and whom it blames."""
        if self.peer.poll().json.get("type") != "mask":  # one that was shut out is refused
            return
        message = parse_message(self.peer.signed("GET", self._path).body)
        try:
            self._put(answer(self.session, message, lambda: self._ring))
        except ClientAborted as error:
            report = {"round": self.offer["round"], "attempt": self.offer["attempt"], "kind": "failed",
                      "reason": "session-left", "blames": error.culprit, "detail": ""}  # fmt: skip
            self.peer.signed("POST", "/v1/report", json.dumps(report).encode())


def honest(encoding, value=0.5, weight=10.0):
    return encoding.encode(np.full(NUMBERS, value, np.float32), weight, {"train_loss": 0.5}).ring


def play(server, clients, over):
    """Lets clients of a session go on until a condition holds."""

    def done():
        for client in clients:
            client.step()
        return over(server.status())

    until(done, "for the session")


def test_who_spoils_a_session_is_named_by_its_peers_and_shut_out(tmp_path):
    """Client 4 deals shares that nobody can open: all four others leave and name it; the next attempt is theirs."""

    def garbage(reply):
        if not isinstance(reply, SealedShares):
            return reply
        return replace(reply, sealed=tuple((k, bytes(len(sealed))) for k, sealed in reply.sealed))

    with serving(tmp_path / "run", SECURE) as server:
        peers, offers = server.cohort(10, 10, 10, 10, 10)
        clients = [Masked(peer, offer, honest) for peer, offer in zip(peers[:4], offers, strict=False)]
        clients.append(Masked(peers[4], offers[4], honest, garbage))
        play(server, clients, lambda status: status["round"]["attempt"] == 1)
        assert server.status()["resting"] == 1
        offers = [peer.offer() for peer in peers[:4]]
        assert {offer["invited"] for offer in offers} == {4}
        clients = [Masked(peer, offer, honest) for peer, offer in zip(peers, offers, strict=False)]
        play(server, clients, lambda status: status["committed"] == 1)


def test_one_client_alone_can_not_have_another_shut_out(tmp_path):
    with serving(tmp_path / "run", SECURE) as server:
        peers, offers = server.cohort(10, 10, 10, 10, 10)
        report = {"round": 1, "attempt": 0, "kind": "failed", "reason": "session-left", "blames": peers[0].k,
                  "detail": ""}  # fmt: skip
        for liar in peers[3:]:  # two of the four that can know are not more than half
            assert liar.signed("POST", "/v1/report", json.dumps(report).encode()).status == 200
        clients = [Masked(peer, offer, honest) for peer, offer in zip(peers[:3], offers, strict=False)]
        until(lambda: server.status()["round"]["attempt"] == 1)
        assert clients[0].peer.offer()["attempt"] == 1


@pytest.mark.parametrize("lie", ["values", "negative weight", "weight"])
def test_a_sum_that_its_clients_can_not_have_is_discarded(tmp_path, lie):
    def ring(encoding):
        good = honest(encoding)
        if lie == "values":
            good[:NUMBERS] = encoding.limit * 2
        else:  # digits of n_k: as if it were -10^6, or 10^6
            scalar = encoding._scalar(-1e6 if lie == "negative weight" else 1e6)[0]
            good[NUMBERS : NUMBERS + encoding._digits] = encoding._cut(scalar)
        return good

    with serving(tmp_path / "run", SECURE) as server:
        peers, offers = server.cohort(10, 10, 10, 10, 10)
        rings = [honest] * 4 + [ring]
        clients = [Masked(peer, offer, each) for peer, offer, each in zip(peers, offers, rings, strict=True)]
        play(server, clients, lambda status: status["committed"] == 1)
        assert server.status()["resting"] == 3  # half of those who may have been it, by lot
    (row,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert (row["clients"], row["examples"]) == (0, 0)
    with Store.open(tmp_path / "run" / "fleet.db") as store:
        assert not store.counted(1).clients


def test_a_bound_on_norms_is_refused_where_it_can_not_apply(tmp_path):
    with (
        pytest.raises(PlanError, match="--norm-bound: nobody can see the norm"),
        serving(tmp_path / "run", SECURE, guards=Guards(max_norm=1.0)),
    ):
        pass


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


@pytest.mark.parametrize("name", ["server.lock", "dev.lock"])
def test_every_locked_package_has_its_hash_and_the_version_that_is_tested(request, name):
    root = request.config.rootpath
    tested = dict(re.findall(r"^([\w.-]+)==(\S+)$", (root / "constraints.txt").read_text().lower(), re.M))
    lines = [line for line in (root / "deploy" / name).read_text().splitlines() if not line.startswith("#")]
    locked = [re.fullmatch(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line) for line in lines]
    assert all(locked), "a line without a hash, or with anything else"
    versions = {found[1].replace("-", "_"): found[2].partition("+")[0] for found in locked}
    known = {package.replace("-", "_"): version for package, version in tested.items()}
    assert {"torch", "starlette", "cryptography"} <= versions.keys()
    assert {name: versions[name] for name in versions.keys() & known.keys()} == {
        name: known[name] for name in versions.keys() & known.keys()
    }
