"""The fleet's commands as a newcomer uses them: real processes, real TLS."""

import json
import re

import pytest
from click.testing import CliRunner

from fedavg.cli import cli
from fedavg.errors import FedAvgError
from programs import fedavg


def test_the_demonstration_gives_the_model_of_the_simulator(tmp_path):
    done = fedavg("fleet-demo", "--clients", "2", "--rounds", "2", "--json", "--run-dir", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["model_sha256"] == outcome["simulated_sha256"]
    assert outcome["rounds"] == 2
    assert outcome["accuracy"] > 0.9
    metrics = (tmp_path / "demo" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["round"] for row in metrics] == [1, 2]
    assert oct((tmp_path / "demo" / "join-token").stat().st_mode & 0o777) == "0o600"


def test_the_demonstration_takes_any_option_of_the_plan(tmp_path):
    settings = ["--set", "codec=stc:0.03", "--set", "downlink=stc:0.03"]
    done = fedavg("fleet-demo", "--clients", "2", "--rounds", "2", *settings, "--run-dir", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stderr
    assert "the same, bit for bit" in done.stdout
    assert re.search(r"sent +0\.0 MB up, 0\.8 MB down", done.stdout), done.stdout  # two models each way otherwise


@pytest.mark.slow
def test_a_fleet_that_sleeps_and_dies_by_a_world_comes_to_its_end(tmp_path):
    """Two time zones with 14 hours each of the 24, of which one takes 3 seconds: killed in the middle of rounds."""
    world = ["--world", "diurnal:2:begin=0:hours=14:spread=0", "--hour-s", "3"]
    done = fedavg("fleet-demo", "--clients", "4", "--rounds", "12", *world, "--json", "--run-dir", str(tmp_path / "d"))
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["rounds"] == 12
    assert outcome["simulated_sha256"] is None
    assert outcome["started"] - 4 <= outcome["killed"] <= outcome["started"]
    assert outcome["accuracy"] > 0.9


#: Some file that is there.
FILE = __file__
PINNED = ("--authority", FILE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fleet-demo", "--set", "task=mnist-cnn"], "got task 'mnist-cnn'"),
        (["fleet-demo", "--hour-s", "2"], "--hour-s: got it without --world"),
        (["fleet-demo", "--world", "weekly"], "'weekly'"),
        (["fleet-demo", "--clients", "2", "--world", "diurnal"], "4 zones for 2 clients"),
        (["serve", "mnist-2nn"], "expected --cert and --key"),
        (
            ["serve", "mnist-2nn", "--insecure", "--cert", FILE, "--key", FILE],
            "--insecure is for plain HTTP; got --cert too",
        ),
        (
            ["serve", "mnist-2nn", "--insecure", "--set", "data=none", "--data-dir", "."],
            "data_dir: got '.', where named data sets are kept, and data is 'none'",
        ),
        (["join", "https://127.0.0.1:1", "--insecure", "--data", "mnist"], "--insecure is for plain HTTP; got https:"),
        (
            ["join", "https://127.0.0.1:1", "--data", "mnist", "--share", "0/2", *PINNED, "--authority-ca", FILE],
            "--authority-ca is for TLS; got --authority-url nowhere",
        ),
        (["serve", "mnist-2nn", "--insecure", "--listen", "0.0.0.0:0"], "plain HTTP on 0.0.0.0: expected TLS"),
        (["serve", "mnist-2nn", "--insecure", "--listen", "nowhere"], "expected HOST:PORT"),
        (["serve", "mnist-2nn", "--insecure", "--eval-train", "true"], "never leaves them"),
        (["serve", "mnist-2nn", "--insecure", "--quorum", "2"], "quorum: got 2.0; expected a share"),
        (["join", "http://server.example", "--data", "mnist"], "expected https"),
        (["join", "http://127.0.0.1:1", "--data", "mnist"], "Plain HTTP is for loopback only, with --insecure"),
        (["join", "https://127.0.0.1:1", "--data", "nothing.npz"], "nothing.npz does not exist"),
        (["join", "https://127.0.0.1:1", "--data", "mnist", "--share", "8/8"], "expected K/N"),
        (["status", "http://127.0.0.1:1"], "nothing listens there; is the server running"),
        (["status", "http://127.0.0.1:1/v1/status"], "expected the address alone, as in http://127.0.0.1:1"),
        (["runs", "http://127.0.0.1:1", "--admin-token-file", "/dev/null"], "/dev/null holds no token"),
    ],
)
def test_mistakes_are_told_clearly(arguments, message, tmp_path):
    if arguments[0] == "serve":
        arguments = [*arguments, "--run-dir", str(tmp_path / "run")]
    done = CliRunner().invoke(cli, arguments)
    assert isinstance(done.exception, FedAvgError)  # which `main` prints without a traceback
    assert message in str(done.exception)


def test_certificates_can_be_made_once(tmp_path):
    make = ["certs", str(tmp_path / "c"), "--host", "server.example"]
    assert CliRunner().invoke(cli, make).exit_code == 0
    assert isinstance(CliRunner().invoke(cli, make).exception, FedAvgError)
