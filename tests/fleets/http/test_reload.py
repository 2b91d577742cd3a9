"""Certificates that are renewed while a server runs: SIGHUP, on real processes, with connections open."""

import os
import signal
import socket
import ssl

import pytest
from harness import free_port, log_lines, start_command, wait_until
from postgres import emptied

from fedavg.fleets.http.protocol.certs import client_context, make_certificates, renew_certificates
from fedavg.fleets.http.server.store import Store
from fedavg.fleets.http.server.store.together import Together
from fedavg.programs.authority import create
from fleet_peers import HOST, Served, fleet_plan, until


class Process:
    """A command that serves, with TLS."""

    def __init__(self, directory, *command):
        self.log, self.port = directory / "serve.log", free_port()
        pair = ["--cert", str(directory / "c" / "server.pem"), "--key", str(directory / "c" / "server.key")]
        self.process = start_command(self.log, *command, *pair, "--listen", f"{HOST}:{self.port}")
        wait_until(lambda: self.lines("serving"), "the server")

    def lines(self, event):
        return [line for line in log_lines(self.log) if line.get("event") == event]

    def reload(self, told="certificates reloaded"):
        before = len(self.lines(told))
        os.kill(self.process.pid, signal.SIGHUP)
        return wait_until(lambda: self.lines(told)[before:], told)

    def stop(self):
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.join(60)
        return self.process.exitcode


def shown(port, ca):
    with (
        socket.create_connection((HOST, port), 20) as plain,
        client_context(ca).wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        return secured.getpeercert(binary_form=True)


@pytest.mark.parametrize("kind", ["plan", "service"])
def test_a_server_takes_over_renewed_certificates_and_drops_nobody(tmp_path, kind):
    made = make_certificates(tmp_path / "c", [HOST])
    (tmp_path / "plan.toml").write_text(fleet_plan(rounds=5).to_toml())
    plan = [str(tmp_path / "plan.toml")] if kind == "plan" else []
    process = Process(tmp_path, "serve", *plan, "--run-dir", str(tmp_path / "run"))
    try:
        served = Served(process.port, tmp_path / "run", client_context(made.ca.certificate))
        peer = served.peer(10)
        open_before, first = peer.socket, shown(process.port, made.ca.certificate)
        peer.send(b"GET /heal")  # half a request is under way
        renew_certificates(tmp_path / "c")
        process.reload()
        assert shown(process.port, made.ca.certificate) != first
        peer.send(b"thz HTTP/1.1\r\nHost: fleet\r\n\r\n")
        assert peer.answer().body == b"ok\n"
        assert peer.socket is open_before
        second = shown(process.port, made.ca.certificate)
        made.server.certificate.write_text("not one")
        (line,) = process.reload("certificates not reloaded")
        assert "cannot use certificate" in line["detail"]
        assert shown(process.port, made.ca.certificate) == second
        peer.close()
    finally:
        assert process.stop() == 0


def test_an_authority_takes_them_over_too(tmp_path):
    made = make_certificates(tmp_path / "c", [HOST])
    create(tmp_path / "authority")
    process = Process(tmp_path, "authority", "serve", str(tmp_path / "authority"), "--devices", "2")
    try:
        first = shown(process.port, made.ca.certificate)
        renew_certificates(tmp_path / "c")
        process.reload()
        assert shown(process.port, made.ca.certificate) != first
    finally:
        assert process.stop() == 0


def test_a_server_without_certificates_survives_the_signal(tmp_path):
    (tmp_path / "plan.toml").write_text(fleet_plan(rounds=5).to_toml())
    port, log = free_port(), tmp_path / "log"
    process = start_command(log, "serve", str(tmp_path / "plan.toml"), "--insecure", "--listen", f"{HOST}:{port}",
                            "--run-dir", str(tmp_path / "run"))  # fmt: skip
    events = lambda: [line.get("event", "") for line in log_lines(log)]  # noqa: E731
    try:
        wait_until(lambda: "serving" in events(), "the server")
        os.kill(process.pid, signal.SIGHUP)
        wait_until(lambda: [event for event in events() if event.startswith("nothing to reload")], "a word")
        assert Served(port, tmp_path / "run").ask("GET", "/healthz").status == 200
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.join(60)
    assert process.exitcode == 0


def test_replicas_go_on_together_when_one_renews_its_certificate(tmp_path, postgres):
    """The leader hears from the other all the time: before, while and after its certificate is another one."""
    url = emptied(postgres)
    (tmp_path / "plan.toml").write_text(fleet_plan(rounds=5).to_toml())
    replicas = []
    try:
        for name in "ab":
            (tmp_path / name).mkdir()
            make_certificates(tmp_path / name / "c", [HOST])
            where = ["--run-dir", str(tmp_path / name / "run")]
            replicas.append(
                Process(tmp_path / name, "serve", str(tmp_path / "plan.toml"), "--replica", "--db", url, *where)
            )
        with Store.open(url) as store:
            together = Together(store.connections)
            until(lambda: len(together.replicas()) == 2)
            before = {row.id: row.certificate for row in together.replicas()}
            for name, replica in zip("ab", replicas, strict=True):
                renew_certificates(tmp_path / name / "c")
                replica.reload()
            for replica in replicas:  # connections that are kept open would prove nothing
                ca = tmp_path / "ab"[replicas.index(replica)] / "c" / "ca.pem"
                assert Served(replica.port, tmp_path, client_context(ca)).ask("GET", "/healthz").status == 200
            after = {row.id: row.certificate for row in together.replicas()}
            assert after.keys() == before.keys()  # nobody was given up
            for replica, known in after.items():
                assert known.startswith(before[replica])
                assert known.count("BEGIN CERTIFICATE") == 2
        assert not [line for each in replicas for line in each.lines("replicas dropped")]
    finally:
        for each in replicas:
            each.stop()


def test_a_peer_that_has_renewed_is_asked_under_its_new_certificate(tmp_path):
    """Both are trusted, so that it does not matter which of them it shows."""
    from fedavg.fleets.http.server.replicas.peers import _pinned

    certificates = [make_certificates(tmp_path / name, [HOST]) for name in "ab"]
    context = _pinned("\n".join(each.server.certificate.read_text() for each in certificates), None)
    assert isinstance(context, ssl.SSLContext)
    assert len(context.get_ca_certs()) + context.cert_store_stats()["x509"] >= 2
