"""A second round of attacks, written from the documents alone, against real servers and real devices."""

import json
import shutil
import threading
from base64 import b64encode
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from harness import PATIENCE_S, DeviceProcess, Hand, Server, log_lines, serving, start_command, wait_until
from liar import lying
from tiny import DATA, SIZES, tiny_plan

from fedavg.dp.accounting import EveryRound, epsilon, gaussian_sigma
from fedavg.fleets.http.device.link import Link, ServerRefused
from fedavg.fleets.http.protocol.keys import ClientKey
from fedavg.fleets.http.protocol.messages import PROTOCOL, Enrolled, EnrolRequest
from fedavg.fleets.http.protocol.wire import UpdateHeader, encode_update

K, NUMBERS = len(SIZES), 195
MASKED = {"secagg": "complete:4:20"}
AT_SERVER = {"stages": ("clip:0.5", "weigh:equal", "noise:5.0"), "noise_source": "os", "dp_delta": 1e-3}
LOCAL = {"stages": ("weigh:equal", "localdp:4:0.5:delta=1e-3"), "noise_source": "os"}
LOCAL_NOISE = 2 * gaussian_sigma(4, 1e-3)


# Options that would be no bound, or none at all


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, ("--norm-bound", "nan"), "norm-bound: got nan"),
        ({}, ("--norm-bound", "-1"), "norm-bound: got -1"),
        ({}, ("--max-weight", "nan"), "max-weight: got nan"),
        ({}, ("--times-median", "nan"), "times-median: got nan"),
        ({}, ("--join-hours", "inf"), "--join-hours: got inf"),
        ({}, ("--linger", "nan"), "--linger: got nan"),
        ({}, ("--min-clients", "9"), "--min-clients: got 9; expected at most 8"),
        ({}, ("--client-ca", "plan.toml"), "--client-ca asks clients for certificates"),
        (MASKED, ("--anonymous",), "--anonymous: under secure aggregation"),
        (MASKED, ("--max-weight", "7"), "--max-weight: got 7, but nobody can see a weight"),
        (MASKED, ("--times-median", "3"), "--times-median: got 3, but nobody can see a weight"),
        ({"algorithm": "fedbuff:2"}, ("--over-selection", "1.5"), "--over-selection: got 1.5, but with 'fedbuff'"),
        ({}, ("--workers", "2"), "workers: got 2, which has no effect on a server"),
        ({}, ("--worker-timeout", "9"), "worker_timeout: got 9, which has no effect on a server"),
        ({}, ("--start-method", "spawn"), "start_method: got spawn, which has no effect on a server"),
        ({}, ("--device", "cpu"), "device: got cpu, which has no effect on a server"),
        ({}, ("--set", "checkpoint_s=5"), "checkpoint_s: got 5, which has no effect on a server"),
    ],
    ids=lambda value: "-".join(value).strip("-") if isinstance(value, tuple) else "",
)
def test_an_option_of_serve_that_bounds_nothing_is_refused(tmp_path, changes, options, said):
    """Every comparison with NaN is false, so that such a bound lets everything through."""
    options = [str(tmp_path / option) if option == "plan.toml" else option for option in options]
    server = Server(tmp_path, tiny_plan(clients=K, **changes), *options)
    server.start()
    try:
        assert server.ended() == 2
    finally:
        server.kill()
    log = server.log.read_text()
    assert said in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--max-epsilon", "nan"), "--max-epsilon: got nan"),
        (("--require-dp", "nan"), "--require-dp: got nan"),
        (("--require-dp", "inf"), "--require-dp: got inf"),
        (("--give-up-after", "nan"), "give_up_after_s (--give-up-after): got nan"),
        (("--ca", "examples.npz"), "ca (--ca) is for TLS"),
        (("--share", "0/2"), "--share is for named data sets"),
        (("--seed", "3"), "--seed is for named data sets"),
        (("--label", "kind"), "--label is for .csv and .parquet files"),
    ],
    ids=lambda value: "-".join(value).strip("-") if isinstance(value, tuple) else "",
)
def test_an_option_of_join_that_bounds_nothing_is_refused(tmp_path, options, said):
    options = [str(tmp_path / option) if option == "examples.npz" else option for option in options]
    with joined("http://127.0.0.1:9", tmp_path, *options) as device:
        device.join(PATIENCE_S)
        assert device.exitcode == 2
    log = (tmp_path / "device.log").read_text()
    assert said in log
    assert "Traceback" not in log


@contextmanager
def joined(url, directory, *options):
    """`fedavg join` as a user starts it, on the first client's examples."""
    examples = DATA.client(0)
    np.savez(directory / "examples.npz", x=examples.x.numpy(), y=examples.y.numpy())
    (directory / "token").write_text("token")
    device = start_command(
        directory / "device.log", "join", url, "--insecure", "--data", str(directory / "examples.npz"), "--task",
        "tiny:TASK", "--client", "0", "--token-file", str(directory / "token"), "--state", str(directory / "device"),
        "--charging", "yes", "--unmetered", "yes", *options,
    )  # fmt: skip
    try:
        yield device
    finally:
        device.kill()
        device.join()


# A lost disk


def one_round(server, hand):
    """Of a private plan: without metrics, all zeros."""
    offer = hand.offered()
    header = UpdateHeader(
        server.plan.digest, offer.round, offer.attempt, offer.model, "float32", NUMBERS, weight=1.0, metrics={}
    )
    hand.link.upload(f"/v1/rounds/{offer.round}/{offer.attempt}/update", encode_update(header, bytes(4 * NUMBERS)))
    server.wait_for(lambda status: status["committed"] >= offer.round, "the round")


def restored(server, copy):
    for file in server.directory.glob("fleet.db*"):
        file.unlink()
    for file in copy.glob("fleet.db*"):
        shutil.copy(file, server.directory)


def test_an_older_copy_of_the_database_makes_no_ledger_forget_what_was_released(tmp_path):
    server = Server(tmp_path, tiny_plan(clients=K, C=0, rounds=50, **AT_SERVER), "--min-clients", "1")
    server.start()
    try:
        hand = Hand(server, 0)
        one_round(server, hand)
        assert server.stop() == 0
        shutil.copytree(server.directory, tmp_path / "copy")
        server.start()
        server.wait_for(lambda _: True, "the server")
        one_round(server, hand)
        one_round(server, hand)
        assert server.stop() == 0

        kept = {name: (server.directory / name).read_bytes() for name in ("ledger.jsonl", "join-token", "admin-token")}
        assert [json.loads(line)["releases"] for line in kept["ledger.jsonl"].splitlines()] == [1, 2, 3]
        listened = len(server.lines("listening"))
        for copy, remove in (
            (tmp_path / "copy", None),
            (tmp_path / "none", None),
            (tmp_path / "copy", "metrics.jsonl"),
        ):
            restored(server, copy)
            if remove:
                (server.directory / remove).unlink()
            server.start()
            assert server.ended() == 2
            assert {name: (server.directory / name).read_bytes() for name in kept} == kept
        assert len(server.lines("listening")) == listened, "nobody is served from a database that lost rounds"
        assert "ledger.jsonl has 2 attempts that the database lacks" in server.log.read_text()
    finally:
        server.kill()
        for each in server.hands:
            each.link.close()


# An active server


@pytest.mark.parametrize(
    ("plan", "change"),
    [
        ({}, {"lr": 1e12}),
        ({}, {"lr": 1e-9}),
        ({}, {"batch": 1}),
        ({}, {"batch": None}),
        (MASKED, {}),
        (MASKED, {"upload_token": "t"}),
    ],
    ids=str,
)
def test_a_device_trains_with_the_batches_and_the_rate_of_its_plan_and_in_its_sessions_alone(tmp_path, plan, change):
    """Tiny batches tell most of single examples; without a session the update would come unmasked."""
    with lying(tiny_plan(rounds=5, clients=K, **plan), NUMBERS) as liar:
        device = DeviceProcess(liar, 0, tmp_path)
        device.start("token")
        try:
            liar.say(0, liar.offer(1, 0, None, 4, **change))
            liar.reported(0, "bad-offer")
            assert 0 not in liar.sent
        finally:
            device.kill()


def test_a_delta_of_the_servers_choice_does_not_stretch_a_devices_budget(tmp_path):
    """At delta 0.5 any number of updates costs next to nothing; the device counts at its own."""
    two = epsilon(EveryRound(), LOCAL_NOISE, 2, 1e-5)
    assert epsilon(EveryRound(), LOCAL_NOISE, 5, 0.5) < two
    with (
        lying(tiny_plan(rounds=5, clients=K, dp_delta=0.5, **LOCAL), NUMBERS) as liar,
        joined(liar.url, tmp_path, "--max-epsilon", str(1.01 * two)) as device,
    ):
        liar.sent[0] = []
        for round in (1, 2, 3):
            liar.say(0, liar.offer(round, 0, None, 4))
            wait_until(lambda n=round: not device.is_alive() or len(liar.sent[0]) >= n, f"round {round}")
        device.join(PATIENCE_S)
        assert len(liar.sent[0]) == 2
        liar.reported(0, "budget-spent")
    assert "after 2 updates another one would cost" in (tmp_path / "device.log").read_text()


@pytest.mark.parametrize("damage", ["another count", "no digest", "a count below 0"])
def test_a_count_of_what_was_spent_that_lies_stops_the_device(tmp_path, damage):
    """A digit that flipped on the disk makes another number, not an unreadable one."""
    spent = tmp_path / "spent.json"
    with lying(tiny_plan(rounds=5, clients=K, **LOCAL), NUMBERS) as liar:
        with joined(liar.url, tmp_path, "--max-epsilon", "1000", "--spent", str(spent)):
            liar.say(0, liar.offer(1, 0, None, 4))
            wait_until(lambda: liar.sent.get(0), "an update")
        content = json.loads(spent.read_text())
        assert content["releases"] == {repr(LOCAL_NOISE): 1}
        if damage == "no digest":
            del content["sha256"]
        else:
            content["releases"][repr(LOCAL_NOISE)] = 0 if damage == "another count" else -5
        spent.write_text(json.dumps(content))
        with joined(liar.url, tmp_path, "--max-epsilon", "1000", "--spent", str(spent)) as device:
            liar.say(0, liar.offer(2, 0, None, 4))
            device.join(PATIENCE_S)
            assert device.exitcode not in (None, 0)
        assert len(liar.sent[0]) == 1
    assert "nobody knows what this device has spent" in (tmp_path / "device.log").read_text()


# A crowd


def test_a_token_for_three_lets_three_in_however_many_come_at_once(tmp_path):
    with serving(tmp_path, tiny_plan(clients=K), "--join-uses", "3") as server:
        token, numbers, refused = server.join_token, [], []

        def come():
            key = ClientKey.generate()
            request = EnrolRequest(token, b64encode(key.public).decode(), 10, "", None, ["tiny:TASK"], PROTOCOL)
            link = Link(server.url, key, None, PATIENCE_S)
            try:
                numbers.append(link.ask(Enrolled, "/v1/enrol", request).client)
            except ServerRefused as error:
                refused.append(error)
            finally:
                with suppress(Exception):
                    link.close()

        crowd = [threading.Thread(target=come) for _ in range(16)]
        for each in crowd:
            each.start()
        for each in crowd:
            each.join()
        assert len(refused) == 13
        assert len(set(numbers)) == 3
        assert not [line for line in log_lines(server.log) if token in json.dumps(line)], "no token in a log"
