"""What the operator's commands and a device say when a server cannot be reached, or not in this way."""

import json
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedavg.cli import cli
from fedavg.errors import FedAvgError
from fedavg.fleets.http.protocol.certs import client_context, make_certificates, server_context
from fedavg.fleets.http.server.listener import Listener
from fedavg.programs.servable import Address, Options
from fedavg.programs.service import serve_runs
from fleet_peers import HOST, Served, serving


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certs"), [HOST], clients=1)


@contextmanager
def offering(directory, *allowed):
    """A service without runs, whose plans may name code of these packages too; gives its port."""
    ready, ports = threading.Event(), []
    options = Options(Address(HOST, 0), directory)
    serve = partial(serve_runs, options, ["toys", *allowed], lambda port: (ports.append(port), ready.set()))
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(60)
    yield ports[0]
    Served(ports[0], directory).admin("POST", "/admin/stop")
    thread.join(120)


def told(*arguments):
    """What a command says that ends by a mistake."""
    done = CliRunner().invoke(cli, list(map(str, arguments)))
    assert isinstance(done.exception, FedAvgError), (done.exception, done.output)
    return str(done.exception)


def test_a_server_with_tls_is_asked_in_the_wrong_ways(made, tmp_path):
    tls = server_context(made.server.certificate, made.server.key)
    with serving(tmp_path, speak=client_context(made.ca.certificate), tls=tls, minimum=1) as server:
        url, ca = f"https://{HOST}:{server.port}", ("--ca", made.ca.certificate)
        assert "expected https:" in told("status", f"http://{HOST}:{server.port}")
        assert "give that authority's file with --ca" in told("status", url)
        assert "its certificate is for other names" in told("status", f"https://localhost:{server.port}", *ca)
        join = ("join", "--data", "mnist", "--share", "0/2", "--token-file", tmp_path / "join-token")
        for where, more, message in (
            (url, (), "give that authority's file with --ca"),
            (f"https://localhost:{server.port}", ca, "its certificate is for other names"),
        ):
            assert message in told(*join, where, *more, "--state", tmp_path / "device")
        runs = told("runs", url, *ca, "--admin-token-file", tmp_path / "admin-token")
        assert "runs are there in a service: 'fedavg serve' without a plan" in runs
        assert f"in {tmp_path / 'join-token'}" in told(
            "clients", url, *ca, "--admin-token-file", tmp_path / "join-token"
        )


def test_a_server_that_asks_for_certificates_says_so(made, tmp_path):
    tls = server_context(made.server.certificate, made.server.key, made.ca.certificate)
    own = made.clients[0]
    speak = client_context(made.ca.certificate, own.certificate, own.key)
    with serving(tmp_path, speak=speak, tls=tls, minimum=1) as server:
        url = f"https://{HOST}:{server.port}"
        assert "expected --cert and --key" in told("status", url, "--ca", made.ca.certificate)
        pair = ["--cert", str(own.certificate), "--key", str(own.key)]
        assert CliRunner().invoke(cli, ["status", url, "--ca", str(made.ca.certificate), *pair]).exit_code == 0


def test_a_plain_server_is_asked_with_tls(made, tmp_path):
    with serving(tmp_path, minimum=1) as server:
        assert "it does not speak TLS; expected http:" in told("status", f"https://{HOST}:{server.port}")


def test_nobody_is_there(tmp_path):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        assert "nothing listens there" in told("status", f"https://{HOST}:{port}")
    assert "there is no such host" in told("status", "https://no-such-host.invalid:1")


def test_something_else_is_at_the_address():
    async def page(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": b"<html>hello</html>"})

    listener = Listener(page, HOST, 0, None)
    listener.start()
    try:
        assert "answered 200 without JSON; is it a fedavg server?" in told("status", f"http://{HOST}:{listener.port}")
    finally:
        listener.stop()


@pytest.mark.parametrize("content", [b"", b"  \n", b"two words", b"\x96\xff", b"a\nb"])
def test_a_file_that_holds_no_token_is_told_before_anything_is_sent(tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    message = f"{tmp_path / 'token'} holds no token; expected one line"
    assert message in told("runs", "http://127.0.0.1:1", "--admin-token-file", tmp_path / "token")
    join = ("join", "http://127.0.0.1:1", "--insecure", "--data", "mnist", "--share", "0/2")
    assert message in told(*join, "--token-file", tmp_path / "token", "--state", tmp_path / "device")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None}, "data: got none"),
        ({"sampling": "poisson"}, "sampling"),
        ({"lr": -1}, "lr: got -1"),
    ],
)
def test_a_plan_that_does_not_fit_is_told_by_submit(tmp_path, changes, message):
    values = {"task": "toys:TOY", "data": "none", "lr": 0.1, "rounds": 1} | changes
    text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items() if value is not None)
    (tmp_path / "plan.toml").write_text(text)
    with offering(tmp_path / "service") as port:
        said = told("submit", tmp_path / "plan.toml", "--server", f"http://{HOST}:{port}",
                    "--admin-token-file", tmp_path / "service" / "admin-token")  # fmt: skip
    assert message in said


OWN_CODE = """
from dataclasses import dataclass

from torch import nn

from fedavg import Task
from fedavg.plan.rates import Rate

TASK = Task("own", lambda: nn.Linear(8, 3))

@dataclass(frozen=True)
class Falling(Rate):
    start: float
    warmup: int = 0

    def after_warmup(self, round, rounds):
        return self.start / round
"""


def test_submit_finds_code_in_the_current_folder(tmp_path, monkeypatch):
    """The task, and a rate whose values are part of the plan. Started as users do: `python -m` looks there anyway."""
    (tmp_path / "falling_rate.py").write_text(OWN_CODE)
    lines = ('task = "falling_rate:TASK"', 'data = "none"', 'lr = "falling_rate:Falling:0.8"', "rounds = 2")
    (tmp_path / "plan.toml").write_text("\n".join(lines))
    command = [Path(sys.executable).with_name("fedavg"), "submit", "plan.toml", "--admin-token-file"]
    monkeypatch.syspath_prepend(tmp_path)  # where the service has it
    with offering(tmp_path / "service", "falling_rate") as port:
        token, server = tmp_path / "service" / "admin-token", f"http://{HOST}:{port}"
        done = subprocess.run(
            [*command, token, "--server", server], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
        (run,) = Served(port, tmp_path / "service").admin("GET", "/admin/runs").json["runs"]
        assert run["state"] in ("queued", "running"), run
