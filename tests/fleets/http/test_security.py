"""Each promise of docs/security.md, tried by hand on a real server over a real socket."""

import gzip
import json
import re
import socket
import ssl
import sys
import threading
from base64 import b64encode
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic, process_time, sleep

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from fedavg import Update
from fedavg.cli import cli
from fedavg.codecs import make_codec
from fedavg.engine.trainer import Trainer
from fedavg.errors import FedAvgError, FleetError, PlanError
from fedavg.fleets.http.device.connection import Connection
from fedavg.fleets.http.device.link import Link, ServerRefused
from fedavg.fleets.http.protocol import wire
from fedavg.fleets.http.protocol.certs import client_context, make_certificates, server_context
from fedavg.fleets.http.protocol.keys import ClientKey
from fedavg.fleets.http.protocol.messages import Problem, UpdateAnswer, WorkOffer
from fedavg.fleets.http.protocol.strict import dump
from fedavg.fleets.http.server import app, bodies, downloads, listener, turns
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.rounds import OpenRound, Rules
from fedavg.fleets.http.server.store import ClientRow, Store
from fedavg.fleets.http.server.underway import Group
from fedavg.plan import Plan
from fedavg.programs.device import Device
from fedavg.programs.servable import Address
from fedavg.setup import resolve_task
from fedavg.types import Part
from fleet_peers import DATA, HOST, NUMBERS, Peer, Wire, fleet_plan, request_bytes, serving, serving_process
from toys import small_net

ONES = np.ones(NUMBERS)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server that waits for more clients than ever come: no round is under way."""
    with serving(tmp_path_factory.mktemp("served") / "run", minimum=10_000) as server:
        yield server


@pytest.fixture
def collecting(tmp_path):
    """A server that collects as soon as two clients are there, with a bound on the norm of updates."""
    with serving(tmp_path / "run", minimum=2, guards=Guards(max_weight=15.0, max_norm=20.0)) as server:
        yield server


# Signatures


def test_a_request_counts_once(served):
    peer = served.peer()
    body = b'{"round":1,"attempt":0,"kind":"failed","reason":"bad-offer","blames":null,"detail":""}'
    once = request_bytes("POST", "/v1/report", body, peer.signer.headers("POST", "/v1/report", body))
    answers = []
    for _ in range(2):
        with Wire(served.port) as wire:
            wire.send(once)
            answers.append(wire.answer().error)
    assert answers == ["wrong-round", "replayed"]


@pytest.mark.parametrize("change", ["path", "method", "body", "client", "epoch", "counter", "key", "query"])
def test_a_signature_is_good_for_one_request_of_one_client_only(served, change):
    peer, other = served.peer(), served.peer()
    body = json.dumps(
        {"round": 1, "attempt": 0, "kind": "failed", "reason": "bad-offer", "blames": None, "detail": ""}
    ).encode()
    method, path = "POST", "/v1/report"
    headers = peer.signer.headers(method, path, body)
    error = "bad-signature"
    match change:
        case "path":
            path = "/v1/poll"
        case "method":
            method, path = "PUT", "/v1/rounds/1/0/update"
        case "body":
            body, error = body.replace(b"1", b"2"), "body-mismatch"
        case "client":
            headers["FedAvg-Client"] = str(other.k)
        case "epoch":
            headers["FedAvg-Epoch"], error = "another", "stale-epoch"
        case "counter":
            headers["FedAvg-Counter"] = "77"
        case "key":
            peer.signer.key = other.key
            headers = peer.signer.headers(method, path, body)
        case "query":
            path, error = "/v1/report?x=1", "no-such-path"
    answer = served.ask(method, path, body, headers)
    assert (answer.status, answer.error) == (404 if change == "query" else 401, error)
    assert peer.signed("POST", "/v1/report", b"{}").error in ("bad-field", "bad-signature")  # the real one goes on


def test_the_host_that_a_request_names_has_no_part_in_what_is_signed(served):
    peer = served.peer()
    headers = peer.signer.headers("POST", "/v1/report", b"{}")
    for host in ("x/v1/report#", "x/v1/report?", "[", "a b", "\xff"):
        assert served.ask("POST", "/v1/poll", b"{}", headers | {"Host": host}).error == "bad-signature"


def test_a_new_epoch_voids_old_signatures_and_says_how_to_go_on(tmp_path):
    with serving(tmp_path / "run", minimum=9) as first:
        peer = first.peer()
        old = peer.signer.headers("POST", "/v1/poll", b"{}")
    with serving(tmp_path / "run", minimum=9) as second:
        refused = second.ask("POST", "/v1/poll", b"{}", old)
        assert (refused.status, refused.error) == (401, "stale-epoch")
        assert refused.json["epoch"] != peer.signer.epoch
        again = Peer(second.port)
        again.signer, again.key = peer.signer, peer.key
        assert again.poll().status == 200  # `signed` takes the new epoch over


def test_a_revoked_client_is_shut_out_at_once_even_while_its_poll_is_held(served):
    peer = served.peer()
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(peer.poll(wait_s=30)))
    began = monotonic()
    waiting.start()
    while not served.status()["held_polls"]:
        sleep(0.01)
    assert served.revoke(client=peer.k) == [peer.k]
    waiting.join()
    assert (answers[0].status, answers[0].error) == (403, "revoked")
    assert monotonic() - began < 25
    assert peer.poll().error == "revoked"
    assert peer.enrol(served.join_token).error == "revoked"
    assert served.status()["held_polls"] == 0


def test_nobody_waits_for_a_client_that_was_revoked_and_its_update_does_not_count(collecting):
    (first, second), offers = collecting.cohort(5, 10)
    collecting.revoke(client=first.k)
    assert first.upload(offers[0], first.frame(offers[0], ONES, 5)).error == "revoked"
    assert second.upload(offers[1], second.frame(offers[1], ONES, 10)).status == 200
    wait_until(lambda: collecting.status()["committed"] == 1)


def test_a_client_has_one_held_poll_the_newest(served):
    peer = served.peer()
    older, newer = Peer(served.port), Peer(served.port)
    older.signer = newer.signer = peer.signer
    done = []
    first = threading.Thread(target=lambda: done.append(older.poll(wait_s=30).json["type"]))
    first.start()
    wait_until(lambda: served.status()["held_polls"] == 1)
    second = threading.Thread(target=lambda: newer.poll(wait_s=1.5))
    second.start()
    first.join(25)
    assert done == ["wait"]
    second.join()
    assert served.status()["held_polls"] == 0


# Enrolment


def test_tokens(served):
    once, bound = served.new_token(uses=1), served.new_token(uses=1, client=700)
    assert served.peer(token=once)
    assert Peer(served.port).enrol(once).error == "token-used"
    assert Peer(served.port).enrol(bound, client=701).error == "number-taken"
    holder = Peer(served.port)
    assert holder.enrol(bound).json["client"] == 700
    assert holder.enrol(bound).json["client"] == 700  # an answer that was lost does no harm
    assert Peer(served.port).enrol(served.join_token, client=700).error == "number-taken"
    assert Peer(served.port).enrol("fedavg_join_guess").error == "token-unknown"
    assert Peer(served.port).enrol(served.admin_token).error == "token-unknown"
    assert Peer(served.port).enrol(served.join_token, tasks=["toys:OTHER"]).error == "wrong-task"
    assert Peer(served.port).enrol(served.join_token, protocol=1).error == "wrong-protocol"


def test_nobody_makes_the_servers_tables_large_by_asking_for_a_large_number(served):
    peer = Peer(served.port)
    key = b64encode(peer.key.public).decode()
    for number in (2**20, 2**31 - 1):
        body = json.dumps({"token": served.join_token, "key": key, "examples": 1, "name": "", "client": number,
                           "tasks": ["toys:TOY"], "protocol": 2}).encode()  # fmt: skip
        assert peer.signed("POST", "/v1/enrol", body).error == "bad-field"


def test_who_enrols_shows_that_it_has_the_key(served):
    peer, thief = Peer(served.port), Peer(served.port)
    peer.key = thief.key  # announces a key, and signs with another
    assert peer.enrol(served.join_token).error == "bad-signature"


# Operators


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/status"),
        ("GET", "/admin/clients"),
        ("POST", "/admin/clients/revoke"),
        ("POST", "/admin/clients/approve"),
        ("GET", "/admin/tokens"),
        ("POST", "/admin/tokens"),
        ("POST", "/admin/tokens/0000000000000000/withdraw"),
        ("POST", "/admin/stop"),
    ],
)
def test_the_operators_endpoints_need_the_operators_token(served, method, path):
    before = served.status() | {"present": 0}
    for scheme, token in (("", ""), ("Bearer", "x"), ("Bearer", served.join_token), ("Basic", served.admin_token),
                          ("Bearer", served.admin_token[:-1]), ("Bearer", served.admin_token + " ")):  # fmt: skip
        headers = {"Authorization": f"{scheme} {token}"} if scheme else {}
        body = b'{"uses":1,"label":"","client":null,"hours":null}'
        if token.endswith(" "):
            continue  # white space at the end of a header is none
        answer = served.ask(method, path, body, headers)
        assert (answer.status, answer.error) == (401, "admin-token")
    assert served.status() | {"present": 0} == before


def test_the_operators_endpoints_can_be_apart(tmp_path):
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    with serving(tmp_path / "run", minimum=9, admin=Address(HOST, port)) as server:
        headers = {"Authorization": f"Bearer {server.admin_token}"}
        assert server.ask("GET", "/admin/status", None, headers).error == "no-such-path"
        apart = replace(server, port=port)
        assert apart.ask("GET", "/admin/status", None, headers).status == 200
        assert apart.ask("GET", "/admin/status/", None, headers).error == "no-such-path"
        assert apart.ask("GET", "/v1/status").error == "no-such-path"
        assert apart.admin("POST", "/admin/stop").status == 200


def test_no_plain_http_beyond_loopback(tmp_path):
    for options in ({"listen": "0.0.0.0:0"}, {"admin-listen": "0.0.0.0:0"}):
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        done = CliRunner().invoke(cli, ["serve", "mnist-2nn", "--insecure", "--run-dir", str(tmp_path), *arguments])
        assert isinstance(done.exception, PlanError)
        assert "plain HTTP on 0.0.0.0: expected TLS" in str(done.exception)
    (tmp_path / "admin").write_text("secret")
    command = ["token", "http://server.example", "--admin-token-file", str(tmp_path / "admin")]
    done = CliRunner().invoke(cli, command)
    assert "expected https" in str(done.exception)  # the operator's token does not travel in the clear


def test_secrets_are_in_no_log_and_no_file_that_others_can_read(tmp_path):
    examples = DATA.client(0)
    np.savez(tmp_path / "own.npz", x=examples.x.numpy(), y=examples.y.numpy())
    with serving_process(tmp_path, fleet_plan(rounds=1), "--min-clients", "1", "--linger", "10") as server:
        secrets = [server.join_token, server.admin_token, server.new_token()]
        served_file = tmp_path / "joined"
        Peer(server.port).enrol("fedavg_join_wrong-guess-of-a-token")
        server.ask("GET", "/admin/status", None, {"Authorization": "Bearer fedavg_join_wrong-guess-of-a-token"})
        device = Device(
            f"http://{HOST}:{server.port}", "toys:TOY", examples, state=served_file, token=server.join_token,
            connection=Connection(insecure=True, give_up_after_s=30),
        )  # fmt: skip
        assert device.run() == 1
    key = (served_file / "key.pem").read_text().splitlines()[1]
    log = (tmp_path / "stderr").read_text()
    assert "committed" in log
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        for secret in [*secrets, "wrong-guess-of-a-token", key]:
            if secret.encode() in content:
                assert path.name in ("join-token", "admin-token", "key.pem")
    for path in (*(tmp_path / "run" / name for name in ("join-token", "admin-token", "fleet.db")),
                 *(served_file / name for name in ("key.pem", "enrolled.json"))):  # fmt: skip
        assert path.stat().st_mode & 0o777 == 0o600, path


# Bounds


def test_encodings_are_refused_so_bombs_stay_packed(served):
    bomb = gzip.compress(bytes(50_000_000))
    peer = served.peer()
    for path in ("/v1/enrol", "/v1/poll", "/v1/report"):
        answer = peer.signed("POST", path, bomb[:8000], {"Content-Encoding": "gzip"})
        assert (answer.status, answer.error) == (415, "content-encoding")
    answer = served.ask("GET", "/healthz", None, {"Accept-Encoding": "gzip"})
    assert "content-encoding" not in answer.headers


def test_an_endless_body_is_cut_while_it_comes_whatever_length_it_claims(collecting):
    (peer, _), (offer, _) = collecting.cohort(5, 10)
    most = wire.max_frame_bytes(NUMBERS, make_codec("float32"))
    for claim in ("Transfer-Encoding: chunked", f"Content-Length: {2**40}"):
        path = f"/v1/rounds/{offer['round']}/{offer['attempt']}/update"
        headers = peer.signer.headers("PUT", path, b"")
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with Wire(collecting.port) as endless:
            endless.send(f"PUT {path} HTTP/1.1\r\nHost: x\r\n{head}{claim}\r\n\r\n".encode())
            piece = b"1000\r\n" + bytes(4096) + b"\r\n" if "chunked" in claim else bytes(4096)
            for _ in range(most // 4096 + 2):
                endless.send(piece)
            answer = endless.answer()
            assert (answer.status, answer.error) == (413, "too-large")
    assert collecting.ask("POST", "/v1/enrol", bytes(9000)).error == "too-large"
    assert collecting.status()["round"]["phase"] == "collecting"


def test_slow_requests_are_cut(served):
    """All at once, since each takes the whole time that it is allowed."""
    head = b"POST /v1/enrol HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
    cases = {
        "silence": (b"", 10),
        "half a head": (b"GET /healthz HTTP/1.1\r\nX: ", 10),
        "line ends": (b"\r\n", 10),
        "line ends after an answer": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 10),
        "half a body": (head + b"x", 15),
        "no body at all": (head, 15),
        "a body that nobody reads": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", 5),
        "a second request that stops": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /", 10),
    }
    ended = {}

    def run_case(name, sent):
        with Wire(served.port, timeout=25) as wire:
            wire.send(sent)
            if name == "line ends after an answer":
                assert wire.answer().status == 200
                wire.send(b"\r\n")
            ended[name] = wire.ended_after()

    threads = [threading.Thread(target=run_case, args=(name, sent)) for name, (sent, _) in cases.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name for name, (_, most) in cases.items() if ended.get(name, 99) > most} == set()
    assert served.ask("GET", "/healthz").status == 200


def test_a_head_that_drips_is_cut_all_the_same(served):
    with Wire(served.port) as wire:
        began = monotonic()
        wire.socket.settimeout(0.3)
        wire.send(b"GET /healthz HTTP/1.1\r\n")
        ended = False
        while not ended and monotonic() - began < 60:
            wire.send(b"X: y\r\n")
            try:
                ended = wire.socket.recv(100) == b""
            except TimeoutError:
                pass
            except ConnectionResetError:
                ended = True
        assert ended
        assert monotonic() - began > 4


@pytest.mark.parametrize(
    "head",
    [
        b"a:\r\n" * 60_000,
        b"X: " + b"y" * 20_000 + b"\r\n",
        b"".join(b"h%d: v\r\n" % i for i in range(3000)),
    ],
    ids=["tiny headers", "one large header", "many headers"],
)
def test_a_large_head_is_refused_at_once(served, head):
    began = process_time()
    with Wire(served.port) as wire:
        wire.send(b"GET /healthz HTTP/1.1\r\n" + head + b"\r\n")
        assert wire.answer().status in (0, 400)
    with Wire(served.port) as wire:
        wire.send(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert wire.answer().status in (0, 400)
    assert served.ask("GET", "/healthz").status == 200
    assert process_time() - began < 3  # the server is in this process


def test_trailers_are_part_of_the_head(served):
    with Wire(served.port) as wire:
        wire.send(b"POST /v1/enrol HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        wire.send(b"".join(b"h%d: v\r\n" % i for i in range(5000)) + b"\r\n")
        assert wire.answer().status in (0, 400)
    assert served.ask("GET", "/healthz").status == 200


def test_few_requests_may_wait_on_one_connection(served):
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with Wire(served.port) as wire:
        wire.send(one * 10)
        assert [wire.answer().status for _ in range(10)] == [200] * 10
    with Wire(served.port) as wire:
        wire.send(one * 5000)
        wire.ended_after()
    assert served.metrics()['fedavg_requests_total{status="200"}'] < 5000


def test_who_asks_too_often_is_told_when_to_come_back(served):
    peer = served.peer()
    answers = [peer.poll() for _ in range(100)]
    refused = [answer for answer in answers if answer.status == 429]
    assert refused
    assert {answer.error for answer in refused} == {"too-often"}
    assert all(1 <= int(answer.headers["retry-after"]) <= 30 for answer in refused)
    assert served.peer().poll().status == 200  # others are not made to wait


def test_a_reader_that_does_not_read_is_cut_and_costs_a_piece_not_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "HEAD_S", 0.5)
    monkeypatch.setattr(listener, "SLOWEST_DOWNLOAD", 2**20)
    hub, model = Hub(Guards()), torch.zeros(5_000_000)
    (digest,) = hub.models.publish([Part([0], model)])
    with Store.open(tmp_path / "fleet.db") as store:
        fleet = app.FleetApp(fleet_plan(), hub, store)
        server = listener.Listener(fleet.asgi, HOST, 0, None)
        server.start()
        try:
            lazy = socket.socket()
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect((HOST, server.port))
            lazy.sendall(request_bytes("GET", f"/v1/models/{digest}"))
            (protocol,) = until(lambda: list(server._server.server_state.connections))
            wait_until(lambda: protocol.flow is not None and protocol.flow.write_paused)
            assert protocol.transport.get_write_buffer_size() < 2 * 2**20  # of 20 MB
            wait_until(lambda: not server._server.server_state.connections, 10)
            lazy.close()
        finally:
            server.stop()
            fleet.close()


# Models


def test_ranges_and_tags_of_models(collecting):
    _, (offer, _) = collecting.cohort(5, 10)
    path = f"/v1/models/{offer['model']}"
    whole = collecting.ask("GET", path)
    assert sha256(whole.body).hexdigest() == offer["model"]
    assert len(whole.body) == 4 * NUMBERS
    tag = f'"{offer["model"]}"'
    assert whole.headers["etag"] == tag
    assert collecting.ask("GET", path, None, {"If-None-Match": tag}).status == 304
    assert collecting.ask("HEAD", path).headers["content-length"] == "780"
    good = {"bytes=0-9": whole.body[:10], "bytes=770-": whole.body[770:], "bytes=-10": whole.body[-10:],
            "bytes=700-99999": whole.body[700:], "bytes=-99999": whole.body}  # fmt: skip
    for wanted, expected in good.items():
        part = collecting.ask("GET", path, None, {"Range": wanted})
        assert (part.status, part.body) == (206, expected)
    for wanted in ("bytes=780-", "bytes=9-8", "bytes=-", "bytes=a-b", "bytes=0-1,3-4", "lines=0-1", "bytes=-0",
                   f"bytes={10**30}-", "bytes=0-" + "9" * 400, "bytes=１-２".encode().decode("latin-1")):  # fmt: skip
        refused = collecting.ask("GET", path, None, {"Range": wanted})
        assert (refused.status, refused.error) == (416, "bad-range")
        assert refused.headers["content-range"] == "bytes */780"
    assert collecting.ask("GET", path, None, {"Range": "bytes=0-1", "If-Range": '"other"'}).body == whole.body
    assert collecting.ask("GET", "/v1/models/" + "0" * 64).error == "no-such-model"


# Updates


def test_a_bad_update_is_refused_with_its_reason_counted_and_the_round_goes_on(collecting):
    """Client 0 has 5 examples and client 1 has 20, of which the server believes 15; the norm may be 20."""
    (bad, good), (offer, theirs) = collecting.cohort(5, 20)
    nan, inf = ONES.copy(), ONES.copy()
    nan[7], inf[9] = np.nan, -np.inf
    honest = bad.frame(offer, ONES, 5)
    frames = {
        "not-finite": [bad.frame(offer, nan, 5), bad.frame(offer, inf, 5)],
        "norm-exceeded": [bad.frame(offer, 2 * ONES, 5)],  # 2 sqrt(195) = 27.9
        "wrong-shape": [bad.frame(offer, ONES, 5, numbers=NUMBERS + 1)],
        "wrong-length": [honest + b"\0"],
        "bad-payload": [bad.frame(offer, ONES[:-1], 5)],
        "truncated": [honest[:-4], b""],
        "wrong-digest": [honest[:-1] + b"\x41"],
        "wrong-round": [bad.frame(offer, ONES, 5, round=2), bad.frame(offer, ONES, 5, attempt=1)],
        "wrong-plan": [bad.frame(offer, ONES, 5, plan="0" * 16)],
        "wrong-model": [bad.frame(offer, ONES, 5, model="0" * 64)],
        "wrong-codec": [bad.frame(offer, ONES, 5, codec="float16")],
        "bad-weight": [bad.frame(offer, ONES, 5.5), honest.replace(b'"weight":5,', b'"weight":0,')],
        "bad-metrics": [bad.frame(offer, ONES, 5, metrics={})],
        "bad-magic": [b"X" + honest[1:]],
    }
    for reason, several in frames.items():
        for frame in several:
            answer = bad.upload(offer, frame)
            assert (answer.status, answer.error) == (422, reason)
    assert good.upload(theirs, good.frame(theirs, ONES, 20)).error == "bad-weight"  # above --max-weight
    counted = {name: value for name, value in collecting.metrics().items() if "updates_refused" in name}
    expected = {reason: len(several) for reason, several in frames.items()}
    expected["bad-weight"] += 1
    assert counted == {f'fedavg_updates_refused_total{{reason="{reason}"}}': n for reason, n in expected.items()}
    wait_until(
        lambda: collecting.status()["round"]["attempt"] > 0
    )  # both were refused: others are asked, or they again


def test_the_round_commits_with_those_who_are_honest(tmp_path):
    """(5 * 1 + 10 * 4) / 15 = 3: what was refused has no part in the model."""
    plan = fleet_plan(rounds=1)
    torch_initial = initial_weights(plan)
    with serving(tmp_path / "run", plan, minimum=3, linger_s=10.0) as server:
        peers, offers = server.cohort(5, 10, 20)
        assert peers[2].upload(offers[2], peers[2].frame(offers[2], ONES * np.nan, 20)).error == "not-finite"
        assert peers[2].poll().json["type"] == "wait"  # it is not asked again for what it cannot do
        assert peers[0].upload(offers[0], peers[0].frame(offers[0], ONES, 5)).status == 200
        again = peers[0].upload(offers[0], peers[0].frame(offers[0], 9 * ONES, 5))
        assert again.json == {"accepted": True, "duplicate": True}
        assert peers[1].upload(offers[1], peers[1].frame(offers[1], 4 * ONES, 10)).status == 200
        wait_until(lambda: server.status()["done"])
        assert [peer.poll().json["type"] for peer in peers] == ["done"] * 3
    saved = torch.cat([tensor.flatten() for tensor in ordered(tmp_path / "run" / "model.safetensors")])
    assert torch.allclose(saved, torch_initial + 3, atol=1e-6)


def initial_weights(plan):
    return Trainer(resolve_task(plan), plan.seed).weights.clone()


def ordered(path):
    tensors = load_file(path)
    return [tensors[name] for name, _ in small_net().named_parameters()]


def test_only_the_invited_may_upload_and_only_to_the_round_under_way(collecting):
    (peer, _), (offer, _) = collecting.cohort(5, 10)
    late = collecting.peer()
    frame = late.frame(offer, ONES, 5)
    assert late.upload(offer, frame).error == "not-invited"
    for path, error in {
        "/v1/rounds/1/1/update": "wrong-round",
        "/v1/rounds/9/0/update": "wrong-round",
        "/v1/rounds/x/0/update": "no-such-path",
        f"/v1/rounds/{10**30}/0/update": "no-such-path",
        "/v1/rounds/-1/0/update": "no-such-path",
        "/v1/rounds/%31/0/update": "no-such-path",
        "/v1/rounds/1/0/anonymous": "upload-token-unknown",
    }.items():
        assert peer.signed("PUT", path, peer.frame(offer, ONES, 5)).error == error


def test_a_client_whose_data_has_grown_says_so_when_it_polls_and_counts_for_more(tmp_path):
    """It enrolled with 60 examples; of 1,000 it says nothing at first. What it said outlasts the server."""
    with serving(tmp_path / "run", fleet_plan(rounds=2), minimum=2) as server:
        (peer, other), (offer, _) = server.cohort(60, 500)
        assert peer.upload(offer, peer.frame(offer, ONES, 1000)).error == "bad-weight"
        peer.examples = 1000
        peer.poll()
        assert peer.upload(offer, peer.frame(offer, ONES, 1000)).status == 200
        other.examples = 0
        other.poll()
    with Store.open(tmp_path / "run" / "fleet.db") as store:
        assert [row.examples for row in store.clients()] == [1000, 0]


def test_a_device_that_is_refused_does_not_try_for_ever(tmp_path):
    """The bound on the norm is one that training cannot keep."""
    with serving(tmp_path / "run", minimum=1, guards=Guards(max_norm=1e-9), rules=Rules(deadline_s=4.0)) as server:
        url = f"http://{HOST}:{server.port}"
        device = Device(
            url, "toys:TOY", DATA.client(0), state=tmp_path / "device", token=server.join_token,
            connection=Connection(insecure=True, give_up_after_s=2.0),
        )  # fmt: skip
        thread = threading.Thread(target=lambda: ends(device.run), daemon=True)
        thread.start()
        wait_until(lambda: server.metrics().get('fedavg_updates_refused_total{reason="norm-exceeded"}', 0) >= 1)
        sleep(2)
        attempts = server.status()["round"]["attempt"] + 1
        assert server.metrics()['fedavg_updates_refused_total{reason="norm-exceeded"}'] <= attempts
        server.revoke(client=0)
        thread.join(40)
        assert not thread.is_alive()


def ends(call):
    with pytest.raises(FedAvgError):
        call()


# Anonymous uploads


def test_anonymous_uploads(tmp_path):
    plan = fleet_plan(rounds=1)
    with serving(tmp_path / "run", plan, minimum=2, guards=Guards(anonymous=True), linger_s=10.0) as server:
        peers = [server.peer(n) for n in (5, 10)]
        for peer in peers:
            peer.poll()
        offers = [peer.offer() for peer in peers]
        assert peers[0].poll().json["type"] == "wait"  # one token for each
        tokens = [offer["upload_token"] for offer in offers]
        assert len(set(tokens)) == 2

        def upload(token, value, weight=5.0):
            frame = peers[0].frame(offers[0], value * ONES, weight)
            return server.ask("PUT", "/v1/rounds/1/0/anonymous", frame, {"FedAvg-Upload-Token": token})

        assert upload("guess", 1).error == "upload-token-unknown"
        assert server.ask("PUT", "/v1/rounds/1/0/anonymous", b"x").error == "upload-token-unknown"
        assert upload(tokens[0], np.nan).error == "not-finite"
        assert upload(tokens[0], 1).json == {"accepted": True, "duplicate": False}
        assert upload(tokens[0], 7).json == {"accepted": True, "duplicate": True}
        assert server.status()["round"]["accepted"] == 1
        assert upload(tokens[1], 3).status == 200
        wait_until(lambda: server.status()["done"])
        assert upload(tokens[1], 3).json["duplicate"]
    saved = torch.cat([tensor.flatten() for tensor in ordered(tmp_path / "run" / "model.safetensors")])
    assert torch.allclose(saved, initial_weights(plan) + 2, atol=1e-6)
    with Store.open(tmp_path / "run" / "fleet.db") as store:
        assert not store.counted(1).clients
    database = (tmp_path / "run" / "fleet.db").read_bytes()
    assert all(sha256(token.encode()).digest() not in database for token in tokens)


def test_nothing_that_the_server_keeps_ties_a_token_to_a_client():
    """Whoever gets the tokens in whatever order, what is left in memory is the same but for the tokens' own values."""
    hub = Hub(Guards(anonymous=True))
    hub.know([ClientRow(k, bytes([k]) * 32, 10, "", False) for k in range(20)])
    expected = wire.Expected("0" * 16, 1, 0, "0" * 64, make_codec("float32"), 2, 10.0, None, frozenset())
    offer = WorkOffer(1, 0, "0" * 64, 2, 9.0, 1, 4.0, 0.1, {}, None, None, 2, 0, None)
    everyone = frozenset(range(20))
    group = Group(everyone, offer, expected, lambda vector, weight: Update(vector, weight))
    hub.collecting.open(OpenRound(1, 0, "0" * 64, everyone, 20, 10, monotonic() + 99), [group])
    tokens = {k: hub.polls.answer(k).upload_token for k in range(20)}
    hashes = {sha256(token.encode()).digest() for token in tokens.values()}
    kept = list(everything_in(hub, set()))
    assert ("given", set(range(20))) in kept
    (given_out,) = (value for name, value in kept if name == "tokens")
    assert given_out == hashes
    assert isinstance(given_out, set)  # it has no order in which they were given
    assert [name for name, value in kept if mentions(value, tokens.values(), hashes)] == ["tokens"]


def everything_in(thing, seen):
    """Names and values of what an object of the package keeps, and of the package's objects in it."""
    seen.add(id(thing))
    for name, value in vars(thing).items():
        inner = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else [value]
        ours = [each for each in inner if type(each).__module__.startswith("fedavg.") and hasattr(each, "__dict__")]
        if not ours:
            yield name, value
        for each in ours:
            if id(each) not in seen:
                yield from everything_in(each, seen)


def mentions(value, tokens, hashes):
    text = repr(value)
    return any(token in text for token in tokens) or any(repr(digest) in text for digest in hashes)


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"), [HOST, "localhost"], clients=1)


def test_tls(tmp_path, certificates):
    pair = certificates.server
    other = make_certificates(tmp_path / "other", [HOST])
    with serving_tls(tmp_path / "run", server_context(pair.certificate, pair.key), certificates) as server:
        assert server.ask("GET", "/healthz").status == 200
        url = f"https://{HOST}:{server.port}"
        link = Link(url, ClientKey.generate(), client_context(other.ca.certificate), 5.0)
        with pytest.raises(FleetError, match="--ca"):
            link.download("/healthz", 10)
        link.close()
        with Wire(server.port, timeout=60) as plain:  # plain HTTP where TLS is spoken
            plain.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert plain.ended_after() < 50
        with Wire(server.port, timeout=60) as silent:  # no handshake at all
            silent.send(b"")
            assert silent.ended_after() < 50
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError, match="(?i)ssl|protocol|reset"), Wire(server.port, old) as wire:
            wire.socket.getpeername()


def test_mutual_tls(tmp_path, certificates):
    pair, client = certificates.server, certificates.clients[0]
    context = server_context(pair.certificate, pair.key, certificates.ca.certificate)
    with serving_tls(tmp_path / "run", context, certificates, client) as server:
        assert server.ask("GET", "/healthz").status == 200
        without = replace(server, tls=client_context(certificates.ca.certificate))
        try:
            answer = without.ask("GET", "/healthz").status
        except OSError:
            answer = 0
        assert answer == 0
        link = Link(f"https://{HOST}:{server.port}", ClientKey.generate(), without.tls, 1.0)
        with pytest.raises(FleetError):
            link.download("/healthz", 10)
        link.close()


@contextmanager
def serving_tls(directory, context, certificates, client=None):
    pair = (client.certificate, client.key) if client else (None, None)
    with serving(directory, tls=context, minimum=9, speak=client_context(certificates.ca.certificate, *pair)) as server:
        yield server


# A server that cannot be trusted


class Malicious(BaseHTTPRequestHandler):
    """Answers what the test says: a table of path to (status, headers, body), where a body may be a generator."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/v1/report":  # once it has heard why not, it lets the device go
            self.server.told.append(json.loads(body)["detail"])
            self.server.answers["/v1/poll"] = (403, {}, dump(Problem("revoked", "", None)))
        self.do_GET()

    do_PUT = do_POST

    def do_GET(self):
        self.server.asked.append(self.path)
        status, headers, body = self.server.answers[self.path]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if isinstance(body, bytes):
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        try:
            for piece in [body] if isinstance(body, bytes) else body():
                self.wfile.write(piece)
                self.server.sent += len(piece)
        except OSError:
            pass

    def log_message(self, *_):
        pass


@pytest.fixture
def malicious():
    with ThreadingHTTPServer((HOST, 0), Malicious) as server:
        server.daemon_threads, server.asked, server.told, server.answers, server.sent = True, [], [], {}, 0
        server.url = f"http://{HOST}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def device_of(server, tmp_path, task="toys:TOY", patience_s=3.0):
    return Device(
        server.url, task, DATA.client(0), state=tmp_path / "device", token="token",
        connection=Connection(insecure=True, give_up_after_s=patience_s),
    )  # fmt: skip


def enrolled(plan_toml, digest="0" * 16, client=0):
    answer = {"client": client, "epoch": "e", "run": 1, "plan": plan_toml, "plan_digest": digest}
    return 200, {}, json.dumps(answer).encode()


@pytest.mark.parametrize(
    "change",
    [
        {"task": "leaves_a_mark:TASK"},
        {"data": "leaves_a_mark:DATA"},
        {"algorithm": "leaves_a_mark:ALGORITHM"},
        {"codec": "leaves_a_mark:CODEC"},
        {"stages": ["leaves_a_mark:STAGE"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_servers_plan_imports_nothing(malicious, tmp_path, monkeypatch, change):
    mark = tmp_path / "mark"
    (tmp_path / "leaves_a_mark.py").write_text(f"open({str(mark)!r}, 'w').close()")
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = {"task": "toys:TOY", "data": "mnist"} | change
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items())
    digest = "0" * 16
    if "data" in change:  # a plan that is good but for what it would import, which this device does not look at
        digest = Plan(**lines).digest
        malicious.answers["/v1/poll"] = (403, {}, dump(Problem("revoked", "", None)))
    malicious.answers["/v1/enrol"] = enrolled(text, digest)
    with pytest.raises(FedAvgError):
        device_of(malicious, tmp_path).run()
    assert not mark.exists()
    assert "leaves_a_mark" not in sys.modules


@pytest.mark.parametrize(
    "plan", ["task = ", "a = " + "[" * 9000, "task = [1]", "lr = {}", "unknown = 1", "task = 'mnist-2nn'", "C = nan"]
)
def test_a_plan_that_is_none_is_told_clearly(malicious, tmp_path, plan):
    malicious.answers["/v1/enrol"] = enrolled(plan)
    with pytest.raises(FedAvgError, match="plan|task|expected"):
        device_of(malicious, tmp_path).run()


def test_a_plan_with_another_digest_is_refused(malicious, tmp_path):
    malicious.answers["/v1/enrol"] = enrolled(fleet_plan().to_toml(), "ab" * 8)
    with pytest.raises(FleetError, match="digest"):
        device_of(malicious, tmp_path).run()


@pytest.mark.parametrize("kind", ["other bytes", "NaN", "endless", "gzip", "too long", "redirect"])
def test_a_bad_model_is_refused_and_costs_no_memory(malicious, tmp_path, kind):
    good = np.zeros(NUMBERS, "<f4").tobytes()
    bad = np.full(NUMBERS, np.nan, "<f4").tobytes()

    def endless():
        for _ in range(4000):
            yield bytes(2**16)

    answers = {
        "other bytes": (200, {}, bytes(reversed(range(195))) * 4),
        "NaN": (200, {}, bad),
        "endless": (200, {}, endless),
        "gzip": (200, {"Content-Encoding": "gzip"}, gzip.compress(good)),
        "too long": (200, {}, good + b"\0"),
        "redirect": (302, {"Location": f"{malicious.url}/elsewhere"}, b""),
    }
    digest = sha256(bad if kind == "NaN" else good).hexdigest()
    offer = WorkOffer(1, 0, digest, NUMBERS, 60.0, 1, 4.0, 0.1, {}, None, None, 1, 0, None)
    plan = fleet_plan()
    malicious.answers |= {
        "/v1/enrol": enrolled(plan.to_toml(), plan.digest),
        "/v1/poll": (200, {}, dump(offer)),
        f"/v1/models/{digest}": answers[kind],
        "/elsewhere": (200, {}, good),
        "/v1/report": (200, {}, dump(UpdateAnswer(accepted=True, duplicate=False))),
    }
    with pytest.raises(ServerRefused, match="revoked"):
        device_of(malicious, tmp_path).run()
    expected = {"other bytes": "SHA-256", "NaN": "NaN", "endless": "more than 780 bytes", "gzip": "content encoding",
                "too long": "more than 780 bytes", "redirect": "302"}  # fmt: skip
    assert expected[kind] in malicious.told[0]
    assert "/elsewhere" not in malicious.asked
    assert malicious.sent < 50 * 2**20


def test_an_endless_answer_to_a_poll_is_cut(malicious, tmp_path):
    def endless():
        for _ in range(4000):
            yield bytes(2**16)

    malicious.answers["/v1/enrol"] = (200, {}, endless)
    with pytest.raises(FleetError, match="more than 131072 bytes"):
        device_of(malicious, tmp_path).run()


def test_a_server_that_is_never_content_with_signatures_does_not_keep_a_device_busy(malicious, tmp_path):
    for headers in ({}, {"FedAvg-Counter": "9" * 5000}):
        malicious.asked.clear()
        malicious.answers["/v1/enrol"] = (401, headers, dump(Problem("stale-epoch", "", "e-2")))
        with pytest.raises(FleetError, match="has not answered"):
            device_of(malicious, tmp_path, patience_s=1.5).run()
        assert len(malicious.asked) < 12


def test_a_cut_download_goes_on_where_it_was(malicious):
    data = np.arange(50_000, dtype="<f4").tobytes()

    def half():
        yield data[:100_000]

    malicious.answers["/v1/models/x"] = (200, {"Content-Length": "200000"}, half)
    link = Link(malicious.url, ClientKey.generate(), None, 10.0)
    ranges = []
    original = Malicious.do_GET

    def then_the_rest(self):
        ranges.append(self.headers.get("Range"))
        original(self)
        malicious.answers["/v1/models/x"] = (206, {}, data[100_000:])

    Malicious.do_GET = then_the_rest
    try:
        assert link.download("/v1/models/x", 200_000) == data
    finally:
        Malicious.do_GET = original
        link.close()
    assert ranges == [None, "bytes=100000-"]


def test_a_large_upload_that_comes_too_late_is_told_so(served):
    peer = served.peer()
    link = Link(f"http://{HOST}:{served.port}", peer.key, None, 5.0)
    link.signer = peer.signer
    with pytest.raises(ServerRefused) as refused:
        link.upload("/v1/rounds/1/0/update", bytes(20_000_000))
    assert refused.value.error == "wrong-round"
    link.close()


# The document


def test_the_document_names_tests_that_are_there_and_the_bounds_of_the_code():
    folder = Path(__file__).parent
    text = (folder.parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    sources = [*folder.glob("test_*.py"), *(folder.parents[1] / "native").glob("test_*.py")]
    known = set(re.findall(r"^def (test_\w+)", "".join(path.read_text() for path in sources), re.M))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named
    assert named <= known
    assert all((folder / name).exists() for name in re.findall(r"`(test_\w+\.py)`", text))
    bounds = {row[3].strip(" `"): row[2] for row in (line.split("|") for line in text.splitlines()) if len(row) == 5}
    numbers = {
        "listener.HEAD_S": listener.HEAD_S,
        "listener.HEAD_BYTES": listener.HEAD_BYTES / 1024,
        "listener.PIPELINED": listener.PIPELINED,
        "listener.IDLE_S": listener.IDLE_S,
        "listener.CONNECTIONS": listener.CONNECTIONS,
        "downloads.PIECE_BYTES": downloads.PIECE_BYTES / 1024,
        "bodies.MESSAGE_BYTES`, `bodies.BODY_S": bodies.MESSAGE_BYTES / 1024,
        "turns.UPLOAD_BYTES`, `turns.TURN_S": turns.UPLOAD_BYTES / 2**20,
    }
    for name, number in numbers.items():
        assert re.search(rf"\b{number:,.0f}\b", bounds[name]), name


# Helpers


def until(look, seconds=15.0):
    end = monotonic() + seconds
    while not (found := look()):
        assert monotonic() < end
        sleep(0.02)
    return found


def wait_until(condition, seconds=15.0):
    until(condition, seconds)
