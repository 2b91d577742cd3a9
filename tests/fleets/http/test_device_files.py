"""The files of a device when something is wrong with them: a clear message that names the file, never a traceback."""

import numpy as np
import pytest
from click.testing import CliRunner
from liar import lying
from tiny import DATA, SIZES, tiny_plan

from fedavg.cli import cli
from fedavg.errors import FedAvgError
from fedavg.fleets.http.device.connection import Connection
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.policy import Policy
from fedavg.fleets.http.protocol.messages import DoneAnswer
from fedavg.programs.device import Device

NUMBERS = 195
DAMAGE = [b"", b"[]", b'{"round": "x"}', b"\xff\xfe\x00"]


def device_of(liar, folder, policy=None):
    return Device(
        liar.url, "tiny:TASK", DATA.client(0), state=folder, token="token", client=0, policy=policy,
        connection=Connection(insecure=True, give_up_after_s=30.0),
    )  # fmt: skip


@pytest.fixture
def masked():
    plan = tiny_plan(rounds=5, C=1.0, clients=len(SIZES), secagg="complete:4:20")
    with lying(plan, NUMBERS) as liar:
        liar.say(0, DoneAnswer(1, "00" * 32, False, None))
        yield liar


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: repr(damage[:8]))
@pytest.mark.parametrize("name", ["enrolled.json", "update.json", "opened.json", "rounds.json", "key.pem"])
def test_a_damaged_file_is_named(masked, tmp_path, name, damage):
    assert device_of(masked, tmp_path, Policy(max_rounds_per_day=3)).run() == 1
    DeviceFiles(tmp_path).write(name, damage)
    masked.say(0, masked.offer(1, 0, bytes(16), 4))
    with pytest.raises(FedAvgError) as caught:
        device_of(masked, tmp_path, Policy(max_rounds_per_day=3)).run()
    assert str(tmp_path / name) in str(caught.value)
    assert masked.sent == {}, "nothing is answered by a device that does not know what it has answered"


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: repr(damage[:8]))
@pytest.mark.parametrize("name", ["offer.json", "session.json"])
def test_a_damaged_session_is_lost_and_the_next_one_is_not(masked, tmp_path, name, damage):
    """What else the session had is there: damage to one of two files is enough."""
    offer = masked.offer(1, 0, bytes(16), 4)
    masked.after_upload = lambda: masked.say(0, DoneAnswer(1, "00" * 32, False, None))
    for damaged in (False, True):
        if damaged:
            DeviceFiles(tmp_path).write(name, damage)
        masked.say(0, offer)
        assert device_of(masked, tmp_path).run() == 1
    first, second = masked.sent[0]
    assert first != second, "fresh keys: the old ones are gone"


def test_a_folder_that_can_not_be_one_is_told_clearly(masked, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FedAvgError, match="cannot be this device's folder"):
        device_of(masked, tmp_path / "file").run()


def test_a_folder_that_others_can_look_into_is_closed(masked, tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    device_of(masked, tmp_path / "open").run()
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700


def test_a_device_without_examples_says_so_before_it_enrols(masked, tmp_path):
    np.savez(tmp_path / "none.npz", x=np.zeros((0, 8), np.float32), y=np.zeros(0, np.int64))
    (tmp_path / "token").write_text("token")
    command = ["join", masked.url, "--insecure", "--data", str(tmp_path / "none.npz"), "--task", "tiny:TASK"]
    ended = CliRunner().invoke(cli, [*command, "--token-file", str(tmp_path / "token"), "--state", str(tmp_path / "d")])
    assert "no examples; expected one at least" in str(ended.exception)
    assert masked.asked == []


def test_a_device_that_was_never_invited_is_told_how(masked, tmp_path):
    device = Device(masked.url, "tiny:TASK", DATA.client(0), state=tmp_path, connection=Connection(insecure=True))
    with pytest.raises(FedAvgError, match="--token-file FILE, or token=... in Python"):
        device.run()
