"""The log: every line is JSON, and what goes wrong for every request while it lasts fills none."""

import json
import logging
import subprocess
import sys

import pytest

from fedavg.fleets.http.server.logs import JsonLines, Seldom, SeldomBy
from fleet_peers import fleet_plan, serving_process
from programs import fedavg


def test_what_goes_wrong_many_times_is_told_at_once_and_then_now_and_then(caplog, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("fedavg.fleets.http.server.logs.monotonic", lambda: clock[0])
    failures = Seldom(logging.getLogger("fedavg.fleet"), "database", logging.ERROR, pause_s=10)
    for now in (100.0, 100.1, 109.9, 110.0, 110.1):
        clock[0] = now
        failures.tell(f"at {now}")
    told = [(record.levelname, record.message, record.detail, record.times) for record in caplog.records]
    assert told == [("ERROR", "database", "at 100.0", 1), ("ERROR", "database", "at 110.0", 3)]


def test_of_many_sources_each_is_told_now_and_then_and_few_are_remembered(caplog, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("fedavg.fleets.http.server.logs.monotonic", lambda: clock[0])
    refused = SeldomBy(logging.getLogger("fedavg.fleet"), "refused", pause_s=10, most=2)
    for now, source in ((0, "a"), (1, "a"), (2, "b"), (9, "a"), (10, "a"), (11, "c"), (12, "b")):
        clock[0] = now
        refused.tell(source, logging.WARNING, who=source)
    told = [(record.who, record.times) for record in caplog.records]
    assert told == [("a", 1), ("b", 1), ("a", 3), ("c", 1), ("b", 1)]  # b was forgotten for c


def test_numbers_that_are_none_of_jsons_make_a_line_all_the_same():
    record = logging.makeLogRecord({"msg": "committed", "levelname": "INFO", "test": {"loss": float("nan")}})
    line = json.loads(JsonLines().format(record), parse_constant=lambda name: pytest.fail(name))
    assert line["test"] == {"loss": "NaN"}


TROUBLES = """
import gc, logging, threading, warnings
from fedavg.fleets.http.server.logs import log_to_stderr

log_to_stderr()

class Ill:
    def __del__(self):
        raise ValueError("two\\nlines")

async def handler(scope, receive, send):
    raise KeyError("in a handler")

from fedavg.fleets.http.server.listener import Listener
import urllib.request, contextlib
listener = Listener(handler, "127.0.0.1", 0, None)
listener.start()
with contextlib.suppress(OSError):
    urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/")
listener.stop()
warnings.warn("of a library")
logging.getLogger("some.library").error("says\\nsomething")
thread = threading.Thread(target=lambda: 1 / 0, name="worker-7")
thread.start()
thread.join()
ill = Ill()
del ill
raise RuntimeError("in the end")
"""


def test_every_line_is_json_whatever_goes_wrong():
    """Warnings, other libraries, uvicorn's own, a thread, a destructor, the main thread: with their tracebacks."""
    done = subprocess.run([sys.executable, "-c", TROUBLES], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    said = " ".join(line["event"] for line in lines)
    for part in ("of a library", "says\nsomething", "Exception in ASGI application"):
        assert part in said
    traces = " ".join(line.get("trace", "") for line in lines)
    for part in ("KeyError: 'in a handler'", "ZeroDivisionError", "ValueError: two\nlines", "RuntimeError: in the end"):
        assert part in traces
    assert {"worker-7", "the main thread"} <= {line.get("where") for line in lines}


def test_a_server_and_a_device_say_all_in_json_until_their_end(tmp_path):
    """Also what ends them: a device whose data is not there, a server whose port is taken."""
    with serving_process(tmp_path, fleet_plan(rounds=1), "--min-clients", "1") as server, server.peer(10) as peer:
        again = fedavg("serve", str(tmp_path / "served.toml"), "--insecure", "--listen", f"127.0.0.1:{server.port}",
                       "--run-dir", str(tmp_path / "other"))  # fmt: skip
        url = f"http://127.0.0.1:{server.port}"
        device = fedavg("join", url, "--insecure", "--data", str(tmp_path / "none.npz"), "--state", str(tmp_path / "d"))
        assert peer.signed("PUT", "/v1/rounds/7/0/update", b"x").error == "wrong-round"
        assert server.ask("GET", "/admin/tokens").error == "admin-token"
        server.revoke(client=peer.k)
        assert peer.poll().error == "revoked"
    for done, part in ((again, "expected a free port"), (device, "none.npz does not exist")):
        assert done.returncode == 2
        *_, last = [json.loads(line) for line in done.stderr.splitlines()]
        assert (last["event"], last["level"]) == ("ended", "critical")
        assert part in last["detail"]
    lines = [json.loads(line) for line in (tmp_path / "stderr").read_text().splitlines()]
    assert [line for line in lines if line["event"] == "serving"]
    refused = {line["reason"]: line for line in lines if line["event"] == "request refused"}
    assert (refused["wrong-round"]["client"], refused["wrong-round"]["level"]) == (0, "info")
    assert refused["wrong-round"]["request"] == "PUT /v1/rounds/7/0/update"
    assert (refused["admin-token"]["status"], refused["admin-token"]["address"]) == (401, "127.0.0.1")
    assert "revoked" in refused
    (revoked,) = [line for line in lines if line["event"] == "client revoked"]
    assert (revoked["client"], revoked["by"]) == (0, "operator")
    assert (lines[-1]["event"], lines[-1]["reason"]) == ("ended", "Stopped")
