"""`fedavg.Device` as an app uses it, with a server that says what a test wants; what it learns is tested elsewhere."""

import asyncio
import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from liar import lying
from safetensors.torch import load_file
from tiny import DATA, SIZES, TASK, tiny_plan

from fedavg import Connection, Device, Examples, Plan
from fedavg.cli import cli
from fedavg.errors import DataError, FedAvgError, PlanError, TaskError
from fedavg.fleets.http.device.sources import Files, Share
from fedavg.fleets.http.device.troubles import LONGEST_S, Troubles
from fedavg.fleets.http.protocol.messages import DoneAnswer, PlanAnswer, WaitAnswer
from fedavg.tasks import Task
from fleet_peers import DATA as PEERS
from fleet_peers import HOST, fleet_plan, serving

NUMBERS = 195
DONE = DoneAnswer(1, "00" * 32, False, None)
HTML = b"<html><h1>413 Request Entity Too Large</h1></html>"
#: The tiny task, with names for its three labels.
NAMED = Task("named", TASK.build, classes=("dog", "cat", "emu"))


@pytest.fixture(scope="module")
def plan():
    return tiny_plan(rounds=50, clients=len(SIZES))


@pytest.fixture
def liar(plan):
    with lying(plan, NUMBERS) as liar:
        yield liar


def device_of(liar, folder, data=None, tasks="tiny:TASK", **options):
    options = {"token": "token", "client": 0, "connection": Connection(insecure=True, give_up_after_s=20.0)} | options
    return Device(liar.url, tasks, DATA.client(0) if data is None else data, state=folder, **options)


def weight_in(frame):
    return json.loads(frame[9 : 9 + int.from_bytes(frame[5:9], "little")])["weight"]


def test_an_app_leads_a_device_step_by_step_and_hears_of_its_rounds(liar, tmp_path):
    heard = []
    with device_of(liar, tmp_path, on_round=heard.append) as device:
        liar.say(0, WaitAnswer(7.0, 0, None))
        waiting = device.step()
        assert (waiting.asked, round(waiting.pause_s)) in {("wait", 6), ("wait", 7), ("wait", 8)}
        liar.say(0, liar.offer(1, 0, None, 4))
        assert device.step().asked == "work"
        liar.say(0, DONE)
        assert device.step().asked == "done"
    assert [(each.task, each.round, each.examples) for each in heard] == [("tiny:TASK", 1, SIZES[0])]
    assert 0 < heard[0].metrics["train_loss"] < 10


def test_data_is_read_anew_for_each_round_and_its_number_travels_with_the_poll(liar, tmp_path):
    """It grows from 7 to 20 examples, then shrinks to 5; the update of 20 is held until its round is over."""
    there = [DATA.client(0)]
    with device_of(liar, tmp_path, data=lambda: there[0]) as device:
        for round, k in ((1, 0), (2, 4), (3, 3)):
            there[0] = DATA.client(k)
            liar.say(0, liar.offer(round, 0, None, 4))
            assert device.step().asked == "work"
    assert [weight_in(frame) for frame in liar.sent[0]] == [7, 20, 5]
    assert [poll["examples"] for poll in liar.poll_bodies] == [7, 20, 20]


def test_a_device_whose_data_is_gone_takes_no_part_until_there_is_some(liar, tmp_path):
    there = [DATA.client(0)]
    empty = Examples(there[0].x[:0], there[0].y[:0])
    with device_of(liar, tmp_path, data=lambda: there[0]) as device:
        liar.say(0, WaitAnswer(0.0, 0, None))
        device.step()
        there[0] = empty
        liar.say(0, liar.offer(1, 0, None, 4))
        device.step()
        assert liar.reported(0, "no-examples")["kind"] == "declined"
        there[0] = DATA.client(1)
        device.step()
    assert [weight_in(frame) for frame in liar.sent[0]] == [12]
    assert [poll["examples"] for poll in liar.poll_bodies] == [7, 0, 12]


def test_examples_of_another_form_are_an_error_and_are_not_trained_on(liar, tmp_path):
    there = [DATA.client(0)]
    with device_of(liar, tmp_path, data=lambda: there[0]) as device:
        device.step()
        there[0] = Examples(torch.zeros(4, 5), torch.zeros(4, dtype=torch.int64))
        with pytest.raises(DataError, match=r"are x \(5,\) .* now; expected x"):
            device.step()


def test_stop_ends_a_device_that_waits_for_its_server(tmp_path):
    """Nobody listens there: it would try for ever."""
    nowhere = type("Nowhere", (), {"url": "http://127.0.0.1:9"})
    device = device_of(nowhere, tmp_path, connection=Connection(insecure=True))
    ended = []
    thread = threading.Thread(target=lambda: ended.append(device.run()))
    thread.start()
    device.stop()
    thread.join(60)
    assert ended == [0]


def test_a_device_runs_beside_the_tasks_of_asyncio(liar, tmp_path):
    """The loop goes on while the device works in its thread; a task that is cancelled stops its device."""
    heard, ticks = threading.Event(), []

    async def app():
        device = device_of(liar, tmp_path, on_round=lambda _: heard.set())
        running = asyncio.create_task(device.arun(hold_s=0))
        liar.say(0, liar.offer(1, 0, None, 4))
        while not heard.is_set():
            ticks.append(await asyncio.sleep(0.001))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return device

    device = asyncio.run(app())
    assert len(ticks) > 1
    with device:  # its folder is free again
        liar.say(0, DONE)
        assert device.step().asked == "done"


def test_a_task_that_does_not_fit_the_data_is_told_before_anything_is_asked(liar, tmp_path):
    wrong = (np.zeros((6, 3), np.float32), np.zeros(6, np.int64))
    with pytest.raises(TaskError), device_of(liar, tmp_path, data=wrong) as device:
        device.step()
    broken = (np.full((6, 8), np.nan, np.float32), np.zeros(6, np.int64))
    with pytest.raises(DataError, match="NaN or infinity"), device_of(liar, tmp_path, data=broken) as device:
        device.step()
    assert liar.asked == []


# Labels


def test_words_are_numbered_by_the_tasks_classes_on_every_device_alike(liar, tmp_path):
    """One device has dogs and emus, the other cats and emus: emu is 2 on both, and their updates say so."""
    vectors = []
    for client, words in ((0, ["dog", "emu"] * 3), (1, [0, 2] * 3)):
        x = np.arange(48, dtype=np.float32).reshape(6, 8) / 48
        liar.say(0, liar.offer(1, 0, None, 4))
        with device_of(liar, tmp_path / str(client), data=(x, words), tasks={"tiny:TASK": NAMED}) as device:
            device.step()
        vectors.append(np.frombuffer(liar.sent[0].pop()[-4 * NUMBERS :], "<f4"))
    assert np.array_equal(*vectors)


@pytest.mark.parametrize(
    ("tasks", "labels", "said"),
    [
        ("tiny:TASK", ["dog", "cat"], r"labels are words.*classes=\('cat', 'dog'\)"),
        (
            {"tiny:TASK": NAMED},
            ["dog", "cow"],
            "got the label 'cow'; expected one of the task's classes: dog, cat, emu",
        ),
        ({"tiny:TASK": NAMED}, [0, 3], "labels are from 0 to 3; task 'named' has 3 classes"),
    ],
)
def test_labels_without_a_meaning_are_refused_before_anything_is_asked(liar, tmp_path, tasks, labels, said):
    data = (np.zeros((2, 8), np.float32), labels)
    with pytest.raises(DataError, match=said), device_of(liar, tmp_path, data=data, tasks=tasks) as device:
        device.step()
    assert liar.asked == []


def test_a_share_of_a_data_set_is_that_of_the_plan():
    share = Share("mnist", 0, 100, "iid", 0, None)
    share.check(Plan(data="mnist", partition="iid", clients=100))
    for changes, said in (
        ({"partition": "shards:2", "clients": 100}, "--partition: got iid, but .* by shards"),
        ({"partition": "iid", "clients": 100, "seed": 1}, "--seed: got 0, but .* by 1"),
        ({"partition": "iid", "clients": 50}, "--share K/N: got 100, but .* by 50"),
    ):
        with pytest.raises(PlanError, match=said):
            share.check(Plan(data="mnist", **changes))


def test_a_file_is_read_again_when_it_has_changed_and_kept_while_it_is_half_written(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("a,label\n1.5,0\n")
    source = Files(path, "label")
    first = source.read(None)
    assert source.read(None) is first
    path.write_text("a,label\n1.5,0\n2.5,1\n3.5,1\n")
    assert len(source.read(None)) == 3
    path.write_text("a,label\n1.5,0\n2.5")
    assert len(source.read(None)) == 3


# Failures


def test_a_proxy_that_refuses_updates_does_not_keep_a_device_busy(liar, tmp_path):
    """Each rest is about twice the one before, and the server hears that it was not its own doing."""
    liar.in_front["PUT "] = (413, HTML)
    rests = []
    with device_of(liar, tmp_path) as device:
        for attempt in range(5):
            liar.say(0, liar.offer(1, attempt, None, 4))
            rests.append(device.step().pause_s)
    assert "HTTP 413, not as a server" in liar.reported(0, "blocked")["detail"]
    assert all(0.5 <= rest / 2**n <= 1.5 for n, rest in enumerate(rests))


def test_rests_have_a_bound_and_end_with_success():
    troubles = Troubles()
    assert max(troubles.rest() for _ in range(2000)) <= 1.5 * LONGEST_S
    troubles.over()
    assert troubles.rest() <= 1.5


def test_a_page_of_a_proxy_in_the_place_of_a_poll_is_waited_out(liar, tmp_path, monkeypatch):
    """First a 502 with HTML, then a 404 with HTML: the server is being replaced."""
    said = iter([(502, HTML), (404, HTML)])
    with device_of(liar, tmp_path) as device:
        device.step()
        liar.in_front["POST /v1/poll"] = next(said)

        def pause(_):
            following = next(said, None)
            if following:
                liar.in_front["POST /v1/poll"] = following
            else:
                liar.in_front.clear()

        monkeypatch.setattr(device._participant._link, "_pause", pause)
        liar.say(0, DONE)
        assert device.step().asked == "done"


def test_a_device_that_its_server_has_forgotten_enrols_again(liar, tmp_path):
    with device_of(liar, tmp_path) as device:
        device.step()
        liar.in_front["POST /v1/poll"] = (401, b'{"error":"bad-signature","detail":"","epoch":null}')
        assert device.step().asked == "enrol"
        liar.in_front.clear()
        liar.say(0, DONE)
        assert device.step().asked == "done"
    assert [path for _, path in liar.asked].count("/v1/enrol") == 2
    liar.in_front["POST /v1/poll"] = (401, b'{"error":"bad-signature","detail":"","epoch":null}')
    with (
        pytest.raises(FedAvgError, match="join token, to enrol again"),
        device_of(liar, tmp_path, token=None) as device,
    ):
        device.step()


# Models


def test_a_device_hears_of_the_models_that_its_server_publishes_bit_for_bit(tmp_path):
    models = []
    with serving(tmp_path / "run", fleet_plan(rounds=3, clients=1, C=1.0), linger_s=60, publish="rounds") as server:
        device = Device(
            f"http://{HOST}:{server.port}", "toys:TOY", PEERS.client(0), state=tmp_path / "device",
            token=server.join_token, connection=Connection(insecure=True), models="rounds", on_model=models.append,
        )  # fmt: skip
        assert device.run(hold_s=1.0) == 3
    rounds = [model.round for model in models]
    assert rounds == sorted(rounds)
    assert (rounds[-1], [model.final for model in models].index(True)) == (3, len(models) - 1)
    written = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(models[-1].tensors[name], tensor) for name, tensor in written.items())


def test_join_writes_the_trained_model_as_the_server_does(tmp_path):
    np.savez(tmp_path / "own.npz", x=PEERS.client(0).x.numpy(), y=PEERS.client(0).y.numpy())
    out, token = tmp_path / "mine.safetensors", tmp_path / "token"
    with serving(tmp_path / "run", fleet_plan(rounds=1, clients=1, C=1.0), linger_s=60) as server:
        token.write_text(server.join_token)
        own = ["--data", str(tmp_path / "own.npz"), "--state", str(tmp_path / "device"), "--task", "toys:TOY"]
        rest = ["--token-file", str(token), "--model-out", str(out), "--insecure", "--give-up-after", "60"]
        done = CliRunner().invoke(cli, ["join", f"http://{HOST}:{server.port}", *own, *rest, "--charging", "yes"])
        assert done.exception is None, done.output
    assert out.read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()


# What is installed


def test_a_device_needs_no_package_of_the_server(tmp_path):
    """The names of the server's packages cannot be imported here; the command says what it would."""
    program = """
import sys
class Blocked:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("starlette", "uvicorn", "sqlalchemy", "httptools", "uvloop", "psycopg"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Blocked())
import fedavg
device = fedavg.Device("https://127.0.0.1:9", {"mnist-2nn"}, lambda: None)
device.stop()
assert device.run() == 0
from fedavg.cli.fleet import serve
from fedavg.cli import main
sys.argv = ["fedavg", "join", "https://127.0.0.1:9", "--data", "nowhere.npz", "--token-file", "token"]
main()
"""
    (tmp_path / "token").write_text("token")
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    assert "nowhere.npz does not exist" in ended.stderr


def test_a_device_takes_up_another_run_and_keeps_what_belongs_to_each_apart(liar, tmp_path, plan):
    other = tiny_plan(rounds=50, clients=len(SIZES), seed=7)
    private = tiny_plan(rounds=50, clients=len(SIZES), stages=["clip:1", "noise:1"], noise_source="os")
    with device_of(liar, tmp_path) as device:
        assert device.step().asked == "wait"
        liar.say(0, DoneAnswer(1, "00" * 32, True, None))
        assert not device.step().over  # there may be other runs
        liar.say(0, PlanAnswer(2, other.to_toml(), other.digest))
        assert device.step().asked == "plan"
        liar.say(0, WaitAnswer(1.0, 0, None))
        device.step()
        assert liar.poll_bodies[-1]["run"] == {"run": 2, "plan_digest": other.digest}
        liar.say(0, PlanAnswer(3, private.to_toml(), "0" * 16))  # not what it says it is
        assert device.step().asked == "plan"
        assert liar.reports[-1][1]["reason"] == "bad-plan"
        liar.say(0, WaitAnswer(1.0, 0, None))
        assert device.step().asked == "wait"
        said = liar.poll_bodies[-1]
        assert (said["run"], said["eligible"]["idle"]) == ({"run": 3, "plan_digest": "0" * 16}, False)
        liar.say(0, PlanAnswer(2, other.to_toml(), other.digest))
        device.step()
    with device_of(liar, tmp_path, token=None) as device:
        liar.say(0, liar.offer(1, 0, None, 1))
        device.step()
        assert liar.poll_bodies[-1]["run"] == {"run": 2, "plan_digest": other.digest}  # also after a restart
    assert (tmp_path / "runs" / "2" / "update.json").exists()
    assert not (tmp_path / "update.json").exists()
