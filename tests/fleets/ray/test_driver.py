"""`fedavg run --fleet ray` as a user has it: real processes, that are killed and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import programs
from toys import heed_ctrl_c

PATIENCE_S = 300
PLAN = ["mnist-2nn", "-C", "0.05", "-E", "1", "-B", "50", "--algorithm", "scaffold", "--workers", "1"]
ROUNDS = 8


def command(*words):
    return [sys.executable, "-P", "-c", "from fedavg.cli import main; main()", *map(str, words)]


def fedavg(*words):
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=PATIENCE_S)


def rows(run):
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.1)


def descendants(pid):
    """The processes that a process has started, and those that they have."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = {pid}
    while more := {child for child, parent in pairs if parent in found} - found:
        found |= more
    return found - {pid}


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def niceness(pid):
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16])
    return None


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run = tmp_path_factory.mktemp("local") / "run"
    done = programs.fedavg("run", *PLAN, "--rounds", ROUNDS, "--run-dir", run, "--json", "--no-plot", "--quiet")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("blow", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_driver_that_is_ended_is_resumed_with_the_same_bits(blow, tmp_path, uninterrupted):
    """SCAFFOLD: what clients keep is part of the checkpoint."""
    run = tmp_path / "run"
    words = ["--rounds", ROUNDS, "--run-dir", run, "--fleet", "ray", "--checkpoint-s", "0", "--quiet", "--no-plot"]
    driver = subprocess.Popen(
        command("run", *PLAN, *words),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=heed_ctrl_c, start_new_session=True,
    )  # fmt: skip
    until(lambda: rows(run) >= 2 or driver.poll() is not None)
    assert driver.poll() is None
    started = descendants(driver.pid)
    assert {niceness(pid) for pid in started} <= {os.nice(0), None}, "workers have the rank of whoever started them"
    if blow is signal.SIGINT:
        os.killpg(driver.pid, blow)  # as a terminal does: to all of the group
    else:
        os.kill(driver.pid, blow)
    driver.wait(PATIENCE_S)
    assert len(started) > 1
    until(lambda: not any(alive(pid) for pid in started))
    assert 2 <= rows(run) < ROUNDS
    done = fedavg("resume", run, "--fleet", "ray", "--json", "--no-plot", "--quiet")
    assert done.returncode == 0, done.stderr
    resumed = json.loads(done.stdout)
    assert resumed["rounds"] == ROUNDS
    assert resumed["model_sha256"] == uninterrupted["model_sha256"]


@pytest.mark.slow  # what actors raise is raised here (test_faults.py), and the command's code follows from that
def test_the_exit_code_is_the_runs(tmp_path):
    small = ["--rounds", 1, "-C", "0.02", "--workers", "1", "--run-dir", tmp_path / "run", "--quiet", "--no-plot"]
    diverged = fedavg("run", "mnist-2nn", "--lr", "1e30", "--fleet", "ray", *small)
    assert diverged.returncode == 2
    assert "round 1 diverged" in diverged.stderr
    assert "Traceback" not in diverged.stderr
