"""Processes that come and go by a world's schedule."""

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from fedavg.cli.sleepers import Sleepers
from fedavg.world import make_world

H = 3600.0


@contextmanager
def sleepers(world, clients, code="import time; time.sleep(600)"):
    """Client processes that wait for long, or end at once with another code."""
    started = []

    def start(k):
        command = [sys.executable, "-S", "-E", "-c", code]
        started.append((k, subprocess.Popen(command, stdin=subprocess.DEVNULL)))
        return started[-1][1]

    yield Sleepers(make_world(world), clients, 0, 1.0, start), started
    for _, process in started:
        process.kill()
        process.wait()


def test_processes_start_and_die_by_the_schedule(tmp_path):
    """Client 0 is there all the time, client 1 for one of every two hours."""
    rows = [{"client": 0, "from": 0, "to": 2 * H}, {"client": 1, "from": 0, "to": H}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with sleepers(f"trace:{tmp_path}/t.jsonl", 2) as (fleet, started):
        for hour in (0.1, 0.5, 1.5, 1.7, 2.2, 3.1):
            fleet.look(hour * H)
        assert [k for k, _ in started] == [0, 1, 1]
        assert (fleet.started, fleet.killed, fleet.failed) == (3, 2, [])
        assert [process.poll() is None for _, process in started] == [True, False, False]


@pytest.mark.parametrize(("code", "failed"), [("", []), ("raise SystemExit(3)", [0])])
def test_a_client_that_ended_by_itself_is_not_started_again(code, failed):
    with sleepers("always", 1, code) as (fleet, started):
        fleet.look(0.0)
        started[0][1].wait()
        fleet.look(1.0)
        fleet.look(2.0)
        assert (fleet.started, fleet.killed, fleet.failed) == (1, 0, failed)


def test_at_the_end_nobody_is_left(monkeypatch):
    monkeypatch.setattr("fedavg.cli.sleepers.GRACE_S", 0.0)
    with sleepers("always", 2) as (fleet, started):
        fleet.look(0.0)
        fleet.end()
        assert len(started) == 2
        assert all(process.poll() is not None for _, process in started)
