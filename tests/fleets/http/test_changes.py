"""Changes of a model as they travel from a server to its devices."""

import json

import pytest
from harness import Fleet, Hand, log_lines, serving
from hypothesis import given
from hypothesis import strategies as st
from tiny import FEW, few_plan, tiny_plan

import fedavg
from fedavg.errors import DataError
from fedavg.fleets.http.device.link import ServerRefused
from fedavg.fleets.http.protocol.changes import KeptChanges, longest, split


def test_by_hand():
    changes = KeptChanges([b"old", b"new!"])
    assert bytes(changes.last(1)) == b"\x04\0\0\0new!"
    assert bytes(changes.last(2)) == b"\x03\0\0\0old\x04\0\0\0new!"
    assert [changes.last(count) for count in (-1, 0, 3)] == [None, None, None]
    assert KeptChanges([]).last(1) is None


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.data())
def test_what_is_joined_is_split_again(frames, data):
    count = data.draw(st.integers(1, len(frames)))
    sent = bytes(KeptChanges(frames).last(count))
    assert split(sent, count) == frames[-count:]
    assert len(sent) <= longest(count, sum(map(len, frames)))


@given(st.binary(max_size=40), st.integers(1, 5))
def test_whatever_comes_is_split_or_refused(data, count):
    try:
        frames = split(data, count)
    except DataError:
        return
    assert len(frames) == count
    assert sum(len(frame) + 4 for frame in frames) == len(data)


@pytest.mark.parametrize(
    "data", [b"", b"\x01\0\0", b"\x02\0\0\0x", b"\xff\xff\xff\xff", b"\0\0\0\0\0\0\0\0", b"\0\0\0\0x"]
)
def test_what_is_not_one_frame_is_refused(data):
    with pytest.raises(DataError, match=f"{len(data)} bytes of changes are not 1 frames"):
        split(data, 1)


def test_a_server_offers_the_changes_that_it_has(tmp_path):
    with serving(tmp_path, tiny_plan(rounds=3, C=1.0, downlink="stc:0.1"), "--min-clients", "1") as server:
        hand = Hand(server, 0)
        first = hand.offered()
        assert first.changes == 0
        hand.upload(first)
        second = hand.offered()
        assert (second.round, second.changes) == (2, 1)
        path = f"/v1/models/{second.model}/changes"
        assert len(split(hand.link.download(f"{path}/1", 1000), 1)) == 1
        for count in ("2", "0", "9999999999", "-1", "x", "1/2"):
            with pytest.raises(ServerRefused, match="no-such"):
                hand.link.download(f"{path}/{count}", 1000)


def test_devices_fetch_changes_and_the_whole_model_where_they_can_not(tmp_path):
    """One device loses its model, that of another is damaged: both fetch it whole, and the run is the simulator's."""
    plan = few_plan(rounds=24, codec="stc:0.1", downlink="stc:0.1")
    with Fleet(tmp_path, plan, len(FEW)) as fleet:
        fleet.server.wait_for(lambda status: status["committed"] >= 6, "six rounds")
        lost, damaged = fleet.devices[0], fleet.devices[1]
        for device in (lost, damaged):
            device.kill()
        (lost.directory / "model").unlink(missing_ok=True)
        kept = bytearray((damaged.directory / "model").read_bytes())
        kept[-1] ^= 1
        (damaged.directory / "model").write_bytes(kept)
        for device in (lost, damaged):
            device.start(fleet.token)
        summary = fleet.finished()
    assert summary["model_sha256"] == fedavg.run(plan).summary.model_sha256
    rows = [json.loads(line) for line in fleet.server.metrics.read_text().splitlines()]
    assert rows[-1]["bytes_down"] < rows[0]["bytes_down"] / 2
    fetched = [line for device in fleet.devices for line in log_lines(device.log) if line.get("event") == "fetched"]
    whole = [line for line in fetched if line["changes"] is None]
    assert len(whole) < len(fetched) / 2
