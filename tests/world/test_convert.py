"""Published traces become ours; a pickle is never run."""

import json
import os
import pickle

import pytest

from fedavg.errors import DataError
from fedavg.world.convert import fedscale, flash
from fedavg.world.trace import read_trace, write_trace

BEHAVIOUR = {
    1: {"duration": 900, "inactive": [300, 900], "finish_time": 1000, "active": [100, 400], "model": "A"},
    2: {"duration": 50, "inactive": [50], "finish_time": 1000, "active": [0, 990], "model": "B"},
    10: {"duration": 0, "inactive": [], "finish_time": 1000, "active": [], "model": "C"},
}
CAPACITY = {1: {"computation": 20.0, "communication": 8000.0}, 2: {"computation": 10.0, "communication": 800.0}}


@pytest.mark.parametrize(
    "write", [lambda p, v: p.write_bytes(pickle.dumps(v)), lambda p, v: p.write_text(json.dumps(v))]
)
def test_fedscale_s_traces(tmp_path, write):
    """20 ms for an inference: 60 ms for a step, 16.7 examples a second; 8000 kbit of 1024 bits are 1.024 MB."""
    write(tmp_path / "behaviour", BEHAVIOUR)
    write(tmp_path / "capacity", CAPACITY)
    rows = list(fedscale(tmp_path / "behaviour", tmp_path / "capacity"))
    assert [(row["client"], row.get("from"), row.get("to")) for row in rows] == [
        (0, 100, 300), (0, 400, 900), (1, 0, 50), (1, 990, 1000), (2, None, None),
    ]  # fmt: skip
    assert rows[0]["speed"] == pytest.approx(1000 / 60)
    assert rows[0]["up"] == rows[0]["down"] == pytest.approx(1.024)
    assert rows[4]["up"] == rows[0]["up"], "devices are dealt again from the start"
    write_trace(tmp_path / "ours.jsonl", rows)
    trace = read_trace(tmp_path / "ours.jsonl")
    assert (trace.first.tolist(), trace.ends.tolist()) == ([0, 2, 4, 4], [300, 900, 50, 1000])


MESSAGES = """2020-01-02 21:00:00\tbattery_charged_on
2020-01-02 21:05:00\tWIFI
2020-01-02 22:00:00\tscreen_lock
2020-01-02 22:30:00\t57.0%
2020-01-03 01:00:00\tscreen_unlock
2020-01-03 01:10:00\tscreen_lock
2020-01-03 02:00:00\t4G
"""


def test_flash_s_traces(tmp_path):
    """There from 22:00 to 01:00 and from 01:10 to 02:00: seconds from the midnight before."""
    ready = {"isSuccess": True, "trace_start": 0, "trace_end": 9e4, "ready_time": [[86400 + 60, 86400 + 90]]}
    entries = {
        "a": {"guid": "a", "messages": MESSAGES},
        "b": ready,
        "c": {"guid": "c", "messages": "yesterday\twifi"},
    }
    (tmp_path / "flash.json").write_text(json.dumps(entries))
    rows = list(flash(tmp_path / "flash.json"))
    assert rows == [
        {"client": 0, "from": 22 * 3600, "to": 25 * 3600}, {"client": 0, "from": 25 * 3600 + 600, "to": 26 * 3600},
        {"client": 1, "from": 60, "to": 90}, {"client": 2},
    ]  # fmt: skip


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch pwned",))


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in ({1: Bomb()}, {1: {"active": [print]}}):
        (tmp_path / "trace").write_bytes(pickle.dumps(content))
        with pytest.raises(DataError, match=r"the pickle asks for .*; expected plain values only, and nothing was run"):
            list(fedscale(tmp_path / "trace"))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x04nonsense", "is neither JSON nor a pickle of plain values"),
        (b"[1]", "has list; expected a dictionary with an entry for each client"),
        (b"{}", "expected a dictionary with an entry for each client"),
        (b'{"1": {"active": [0]}}', "client 1: expected lists 'active' and 'inactive' of seconds"),
        (b'{"1": {"active": [-5], "inactive": [9], "finish_time": 9}}', "client 1: expected finite times from 0"),
        (b"{", "is not JSON"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, content, message):
    (tmp_path / "trace").write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(fedscale(tmp_path / "trace"))
