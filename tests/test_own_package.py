"""examples/own_package, installed as a user would: its own tests, a run on one machine, and one over HTTP."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from programs import fedavg, start

PACKAGE = Path(__file__).parents[1] / "examples/own_package"
PATIENCE_S = 240
SMALL = ["--clients", "3", "-C", "0.67", "-E", "1", "-B", "50", "--rounds", "2"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment of processes in which the package is installed, beside what is there."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(PACKAGE, folder / "source")  # a build leaves files beside its source
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
               "--target", folder / "site", folder / "source"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def simulated(installed, tmp_path_factory):
    run = tmp_path_factory.mktemp("local") / "run"
    result = fedavg("run", PACKAGE / "plan.toml", *SMALL, "--run-dir", run, "--json", "--no-plot", env=installed)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), run


def test_its_own_tests_pass(installed):
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_parts.py"]
    result = subprocess.run(tests, cwd=PACKAGE, env=installed, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 0, result.stdout


def test_it_runs_on_one_machine(simulated):
    summary, run = simulated
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert summary["rounds"] == len(rows) == 2
    assert rows[-1]["test"]["confidence"] > 0.1, "better than guessing among ten"
    numbers = 199_210
    assert rows[0]["bytes_up"] == 2 * (4 + (numbers + 7) // 8), "a bit for each number of two clients"


def free_port():
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


def test_it_runs_over_http_and_only_where_it_is_allowed(installed, simulated, tmp_path):
    url, run = f"http://127.0.0.1:{(port := free_port())}", tmp_path / "run"
    log = tmp_path / "server.log"
    serve = ("serve", PACKAGE / "plan.toml", *SMALL, "--insecure", "--listen", f"127.0.0.1:{port}",
             "--run-dir", run, "--min-clients", "3", "--linger", "60", "--json")  # fmt: skip
    running = [start(*serve, out=tmp_path / "result.json", err=log, env=installed)]
    try:
        until = time.monotonic() + PATIENCE_S
        while not log.exists() or '"event": "serving"' not in log.read_text():
            assert running[0].is_alive(), log.read_text()
            assert time.monotonic() < until
            time.sleep(0.05)

        def join(k, *more):
            return ("join", url, "--insecure", "--data", "mnist", "--share", f"{k}/3", "--partition", "iid",
                    "--client", k, "--token-file", run / "join-token", "--state", tmp_path / f"device-{k}",
                    "--charging", "yes", "--unmetered", "yes", *more)  # fmt: skip

        refused = fedavg(*join(0), env=installed)
        assert refused.returncode == 2
        assert "which this device does not allow; if it is installed and trusted here: fedavg join" in refused.stderr
        for k in range(3):
            said = {"out": tmp_path / f"device-{k}.out", "err": tmp_path / f"device-{k}.log"}
            running.append(start(*join(k, "--allow", "own_package"), **said, env=installed))
        running[0].join(PATIENCE_S)
        assert running[0].exitcode == 0, log.read_text()
    finally:
        for process in running:
            process.kill()
            process.join()
    summary = json.loads((tmp_path / "result.json").read_text())
    assert summary["model_sha256"] == simulated[0]["model_sha256"]
