"""Processes of runs: forked from one that is warm, or new; the same run either way, and nothing is left behind."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

from fedavg import Plan
from fedavg.campaign.one import FAILED
from fedavg.campaign.orders import Order, plan_values, run_directory, write_order
from fedavg.campaign.processes import KILLED, ForkedRuns, NewRuns, run_starter
from fedavg.campaign.records import CAP
from fedavg.runlog.rundir import RunDir
from fedavg.runlog.summary import curve

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def order(folder, name="order", rounds=2, **changes):
    plan = Plan(data="mnist", C=0.02, rounds=max(rounds, 1), workers=1)
    path = folder / f"{name}.json"
    write_order(
        path, Order(plan_values(plan) | {"workers": 1} | changes, None, rounds, CAP, "that is all", 0, "a test")
    )
    return path


def ended(process, seconds=120):
    end = monotonic() + seconds
    while process.poll() is None and monotonic() < end:
        sleep(0.02)
    return process.returncode


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture(scope="module")
def forked():
    """A process that is warm: that takes longer than the runs."""
    runs = ForkedRuns()
    yield runs
    runs.close()


@needs_fork
def test_forked_and_new_processes_do_the_same_run(forked, tmp_path):
    losses = []
    for runs in (forked, NewRuns()):
        path = order(tmp_path, type(runs).__name__)
        assert ended(runs.start(path)) == 0
        losses.append(curve(RunDir(run_directory(path)).rows(), "loss"))
    assert losses[0] == losses[1]
    assert list(losses[0][0]) == [1, 2]


@needs_fork
def test_runs_have_one_parent_and_end_when_it_does(forked, tmp_path):
    runs = forked
    first, second = (runs.start(order(tmp_path, name, rounds=100_000)) for name in ("a", "b"))
    warm = parent_of(first._pid)
    assert parent_of(second._pid) == warm != os.getpid()
    first.terminate()
    assert ended(first) == 130
    os.kill(warm, signal.SIGKILL)
    assert ended(second) == -KILLED  # nothing is known of it any more
    end = monotonic() + 120
    while is_alive(second._pid) and monotonic() < end:
        sleep(0.05)
    assert not is_alive(second._pid)
    third = runs.start(order(tmp_path, "c"))
    assert ended(third) == 0


@needs_fork
def test_what_a_run_cannot_do_is_in_its_own_log(forked, tmp_path):
    path = order(tmp_path, data="no such data")
    assert ended(forked.start(path)) == FAILED
    assert "no such data" in path.with_suffix(".log").read_text()


def test_a_system_that_cannot_fork_starts_new_processes(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    assert isinstance(run_starter(), NewRuns)
