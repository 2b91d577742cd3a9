"""Privacy over the network: real servers and devices, and what the ledger says of what they really did."""

import json
import random
import re
import threading
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from math import erfc, exp, sqrt
from time import sleep

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from harness import PATIENCE_S, Fleet, Hand, wait_until
from harness import serving as serving_process
from safetensors.torch import load
from tiny import DATA, SIZES, tiny_plan

from fedavg.cli import cli
from fedavg.dp.accounting import EveryRound, FixedSize, epsilon, gaussian_sigma
from fedavg.errors import FedAvgError, FleetError, PlanError
from fedavg.fleets.http.device.eligibility import look
from fedavg.fleets.http.device.enrolment import Enrolment
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.link import Link
from fedavg.fleets.http.device.releases import Releases
from fedavg.fleets.http.protocol.messages import WorkOffer
from fedavg.fleets.http.server.rounds import Rules
from fedavg.fleets.http.server.store import Store
from fedavg.privacy.served import BudgetSpent
from fedavg.programs.device import Device
from fedavg.programs.servable import Address, Options
from fedavg.programs.serve import serve
from fedavg.setup import population_of, resolve
from fleet_peers import NUMBERS, Peer, fleet_plan, serving

K = len(SIZES)
AT_SERVER = ("clip:0.5", "weigh:equal", "noise:2.0")
LOCAL = ("weigh:equal", "localdp:4:0.5:delta=1e-3")
#: z of LOCAL.
LOCAL_NOISE = 2 * gaussian_sigma(4, 1e-3)
PRIVATE = {"clients": K, "noise_source": "os", "dp_delta": 1e-3}


def private_plan(stages, **changes):
    """For peers that are led by hand."""
    return fleet_plan(**{"data": "tiny:DATA", "stages": stages, **PRIVATE, **changes})


def device_plan(stages, **changes):
    return tiny_plan(**{"stages": stages, **PRIVATE, **changes})


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def exact_epsilon(releases, noise, delta=1e-3):
    """Of so many releases together, each moved by up to 2 by one client and noised by `noise`: Balle and Wang 2018."""
    from scipy.optimize import brentq  # imported by those who use it: every worker collects this file

    mu = 2 * sqrt(releases) / noise
    normal = lambda x: erfc(-x / sqrt(2)) / 2  # noqa: E731
    excess = lambda eps: normal(mu / 2 - eps / mu) - exp(eps) * normal(-mu / 2 - eps / mu) - delta  # noqa: E731
    return brentq(excess, 0, 500) if releases else 0.0


def answer(peer, offer):
    return peer.upload(offer, peer.frame(offer, np.zeros(NUMBERS), 1.0, metrics={}))


# Who is charged for what


def test_a_number_of_k_or_above_is_refused_and_makes_no_cohort_larger(tmp_path):
    """With K = 3 and C = 1/3 a cohort is one client; a client 1048575 would have made it everybody."""
    plan = fleet_plan(clients=3, C=1 / 3, rounds=100)
    with serving(tmp_path, plan, minimum=3) as served:
        assert Peer(served.port).enrol(served.new_token(uses=None), client=2**20 - 1).error == "number-too-large"
        assert Peer(served.port).enrol(served.new_token(uses=None), client=3).error == "number-too-large"
        peers = [served.peer() for _ in range(3)]
        assert sorted(peer.k for peer in peers) == [0, 1, 2]
        more = Peer(served.port).enrol(served.new_token(uses=None))
        assert more.error == "number-too-large", "all of K are there"
        for peer in peers:
            peer.poll()
        kinds = [peer.poll(1.0).json["type"] for peer in peers]
        assert kinds.count("work") == 1


def test_where_the_same_two_of_eight_come_each_time_they_are_charged_in_full(tmp_path):
    """C = 1/4 would be two of eight at random; these two are all that there is."""
    plan = private_plan(AT_SERVER, C=0.25, rounds=4)
    with serving(tmp_path, plan, minimum=2) as served:
        peers = [served.peer() for _ in range(2)]
        for _ in range(4):
            for peer in peers:
                peer.poll()
            offers = [peer.offer() for peer in peers]
            for peer, offer in zip(peers, offers, strict=True):
                assert answer(peer, offer).status == 200
        wait_until(lambda: served.status()["done"], "the last round")
    full = [epsilon(EveryRound(), 2.0, round, 1e-3) for round in range(1, 5)]
    assert [row["epsilon"] for row in rows(tmp_path / "metrics.jsonl")] == pytest.approx(full)
    assert full[-1] > 1.5 * epsilon(FixedSize(8, 2), 2.0, 4, 1e-3), "what a draw from all of K would have cost"
    last = rows(tmp_path / "ledger.jsonl")[-1]
    assert (last["state"], last["releases"], last["released"]) == ("done", 4, sorted(peer.k for peer in peers))
    assert (tmp_path / "ledger.jsonl").stat().st_mode & 0o777 == 0o600
    with Store.open(tmp_path / "fleet.db") as store:
        assert [entry["epsilon"] for entry in store.ledger()] == pytest.approx(full)


def test_the_operator_sees_what_the_rounds_cost_and_nobody_else_does(tmp_path):
    plan = private_plan(AT_SERVER, C=0.25, rounds=2)
    with serving(tmp_path, plan, minimum=2) as served:
        peers = [served.peer() for _ in range(2)]
        for _ in range(2):
            for peer in peers:
                peer.poll()
            for peer, offer in [(peer, peer.offer()) for peer in peers]:
                assert answer(peer, offer).status == 200
        wait_until(lambda: served.status()["done"], "the last round")
        command = ["status", f"http://127.0.0.1:{served.port}", "--ledger"]
        refused = CliRunner().invoke(cli, command)
        told = CliRunner().invoke(cli, [*command, "--admin-token-file", str(tmp_path / "admin-token")])
    assert "only those who operate the server see that" in str(refused.exception)
    full = [epsilon(EveryRound(), 2.0, round, 1e-3) for round in (1, 2)]
    expected = [(str(round), str(round), f"{cost:.6g}", "0.001") for round, cost in enumerate(full, 1)]
    assert [tuple(line.split()) for line in told.output.splitlines()[1:]] == expected


def test_abandoned_attempts_are_on_the_ledger_and_end_a_run_whose_budget_they_spend(tmp_path):
    """Others are asked each time, and nobody answers: whoever was asked for an update is charged for it."""
    afford = epsilon(EveryRound(), LOCAL_NOISE, 1, 1e-3)
    plan = private_plan(LOCAL, C=0.25, rounds=5, dp_epsilon=1.01 * afford)
    with serving(tmp_path, plan, minimum=2, rules=Rules(deadline_s=0.5, quorum=1)) as served:
        peers = [served.peer() for _ in range(2)]
        for peer in peers:
            peer.poll()
        for peer in peers:
            peer.offer()
        wait_until(lambda: len(rows(tmp_path / "ledger.jsonl")) >= 3, "three abandoned attempts")
        for peer in peers:
            answer(peer, peer.offer())
        wait_until(lambda: served.status()["done"], "the end of the budget")
    ledger = rows(tmp_path / "ledger.jsonl")
    assert [row["state"] for row in ledger].count("abandoned") >= 3
    assert {row["releases"] for row in ledger} == {1}, "a device sends the same update in each attempt at a round"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("budget spent", 1)
    assert summary["privacy"]["epsilon"] == pytest.approx(afford)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"noise_source": "seeded"}, "noise_source: got 'seeded', which lets anyone with the plan remove the noise"),
        ({"clients": None}, "needs K"),
        ({"stages": (*AT_SERVER[:2], "noise:2.0:where=clients")}, "where=clients: .* expected secagg"),
        ({"clients": 5}, "clients: got 5, but data 'tiny:DATA' has 8"),
        ({"dp_epsilon": 1.0}, r"round 1 alone costs 3.* \(replace one client\)"),
    ],
)
def test_a_plan_whose_promise_the_network_can_not_keep_is_refused(tmp_path, changes, reason):
    with pytest.raises(PlanError, match=reason):
        serve(private_plan(**{"stages": AT_SERVER, **changes}), Options(Address("127.0.0.1", 0), tmp_path))


# Devices


class Recording(Link):
    """Notes the updates that it sends."""

    def __init__(self, url, key, sent):
        super().__init__(url, key, None, 3.0)
        self._sent = sent

    def upload(self, path, body):
        self._sent.append((path, bytes(body)))
        return super().upload(path, body)


class DeviceThread(threading.Thread):
    """A device of this process, so that what it sends can be looked at."""

    def __init__(self, server, k, directory, **options):
        super().__init__(daemon=True)
        self.sent, self.ended = [], None
        self._device = Device(
            server.url, "tiny:TASK", DATA.client(k), state=directory, token=server.join_token, client=k,
            make_link=lambda key: Recording(server.url, key, self.sent),
            eligible=lambda: look("yes", "yes", "yes"), **options,
        )  # fmt: skip

    def run(self):
        try:
            self._device.run()
        except FedAvgError as error:
            self.ended = error


def update_in(frame):
    """The numbers of an update: float32, at the end of its frame."""
    return np.frombuffer(frame[-4 * NUMBERS :], "<f4")


def test_a_device_sends_the_same_noised_update_in_every_attempt_at_a_round(tmp_path):
    """Of two that are wanted one never answers, so that the round is tried again and again."""
    plan = device_plan(LOCAL, C=0.25, rounds=2)
    options = ("--min-clients", "2", "--deadline", "1", "--quorum", "1")
    with serving_process(tmp_path, plan, *options) as server:
        silent = Hand(server, 1)
        silent.poll(0)
        device = DeviceThread(server, 0, tmp_path / "device")
        device.start()
        attempts = lambda: {path for path, _ in device.sent}  # noqa: E731
        wait_until(lambda: (silent.poll(0), len(attempts()) >= 3)[1], "three attempts")
        spent = json.loads((tmp_path / "device" / "spent.json").read_text())
        server.kill()
        device.join(PATIENCE_S)
    vectors = [update_in(frame) for path, frame in device.sent if path.startswith("/v1/rounds/1/")]
    assert len(vectors) >= 3
    assert all(np.array_equal(vectors[0], other) for other in vectors)
    assert float(vectors[0].std()) == pytest.approx(LOCAL_NOISE * 0.5, rel=0.3)
    assert spent["releases"] == {repr(LOCAL_NOISE): 1}
    for name in ("spent.json", "kept.update"):
        assert (tmp_path / "device" / name).stat().st_mode & 0o777 == 0o600


def test_a_flipped_bit_in_the_update_that_a_device_keeps_is_told_and_never_sent(tmp_path):
    """One of each part of the file: its digest, its head, the ends of it, and the numbers."""
    plan = device_plan(LOCAL, C=0.25, rounds=2)
    with serving_process(tmp_path, plan, "--min-clients", "2", "--deadline", "1", "--quorum", "1") as server:
        silent = Hand(server, 1)
        silent.poll(0)
        device = DeviceThread(server, 0, tmp_path / "device")
        device.start()
        wait_until(lambda: (silent.poll(0), device.sent)[1], "an update")
        server.kill()
        device.join(PATIENCE_S)
    file, files = tmp_path / "device" / "kept.update", DeviceFiles(tmp_path / "device")
    whole = file.read_bytes()
    setup, offer = resolve(plan, population_of(DATA), DATA.test), offer_of(device.sent[0])
    releases = Releases(setup, files, tmp_path / "spent.json", None)
    assert releases.has(offer)
    for place in (0, 63, 64, 70, whole.index(b"weight"), whole.index(b"}\n") + 1, len(whole) - 500, len(whole) - 1):
        for bit in range(8):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            with pytest.raises(FleetError, match="kept.update is damaged: .*remove it: the device then makes another"):
                releases.has(offer)
    file.write_bytes(whole[:-1])
    with pytest.raises(FleetError, match="does not match its digest"):
        releases.message(offer, lambda _: pytest.fail("it trains anew with other noise"))


def offer_of(sent):
    """The offer that an update answers, as far as it names it."""
    path, frame = sent
    round, attempt = map(int, path.split("/")[3:5])
    model = re.search(rb'"model": ?"([0-9a-f]{64})"', frame)[1].decode()
    return WorkOffer(round, attempt, model, NUMBERS, 9.0, 1, 4.0, 0.1, {}, None, None, 2, 0, None)


def test_a_device_stops_by_itself_when_its_own_budget_is_spent_and_stays_stopped(tmp_path):
    """The plan has no limit; the device may spend what two updates cost."""
    limit = 1.01 * epsilon(EveryRound(), LOCAL_NOISE, 2, 1e-5)
    with serving_process(tmp_path, device_plan(LOCAL, C=0, rounds=6), "--min-clients", "1") as server:
        device = DeviceThread(server, 0, tmp_path / "device", max_epsilon=limit)
        device.start()
        device.join(PATIENCE_S)
        assert isinstance(device.ended, BudgetSpent)
        assert "after 2 updates another one would cost epsilon" in str(device.ended)
        assert server.status()["committed"] == 2
        again = DeviceThread(server, 0, tmp_path / "device", max_epsilon=limit)
        again.start()
        again.join(PATIENCE_S)
        assert isinstance(again.ended, BudgetSpent)
        assert again.sent == [], "nothing more leaves it"
    assert len({path for path, _ in device.sent}) == 2


def test_a_device_with_a_budget_takes_no_part_without_noise(tmp_path):
    with serving_process(tmp_path, tiny_plan(C=0, rounds=1, clients=K), "--min-clients", "1") as server:
        device = DeviceThread(server, 0, tmp_path / "device", max_epsilon=3.0)
        device.start()
        device.join(PATIENCE_S)
        assert "--max-epsilon 3: the server's plan adds no noise" in str(device.ended)


def test_a_damaged_count_of_what_was_spent_is_never_taken_for_none(tmp_path):
    with serving_process(tmp_path, device_plan(LOCAL, C=0, rounds=1, dp_epsilon=100), "--min-clients", "1") as server:
        (tmp_path / "spent.json").write_text('{"releases": {"3')
        device = DeviceThread(server, 0, tmp_path / "device", spent=tmp_path / "spent.json")
        device.start()
        device.join(PATIENCE_S)
        assert "nobody knows what this device has spent" in str(device.ended)
        assert device.sent == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"noise_source": "seeded"}, "noise_source: got 'seeded'"),
        ({"clients": None}, "the plan's stages need K"),
        ({"stages": (*AT_SERVER[:2], "noise:2.0:where=clients")}, "expected secagg"),
    ],
)
def test_a_device_refuses_such_plans_whoever_serves_them(tmp_path, changes, reason):
    plan = device_plan(**{"stages": LOCAL, **changes})
    identity = Enrolment("http://127.0.0.1:1", 0, plan.to_toml(), plan.digest)
    (tmp_path / "enrolled.json").write_text(json.dumps(asdict(identity)))

    class Nowhere:
        url, join_token = identity.server, "none"

    device = DeviceThread(Nowhere, 0, tmp_path)
    device.run()
    assert isinstance(device.ended, PlanError)
    assert reason in str(device.ended)


# Noise of the clients


def test_what_a_fleet_publishes_has_the_noise_that_was_promised(tmp_path):
    """Updates clipped to next to nothing: the sum of four has noise of 1, whoever of the four added it."""
    stages = ("clip:1e-6", "weigh:equal", "noise:1e6:where=clients")
    plan = device_plan(stages, secagg="complete:7:1", C=0.5, rounds=3)
    with Fleet(tmp_path, plan, 4) as fleet:
        summary = fleet.finished()
        with fleet.database() as store:
            states = _states(store)
    moved = torch.stack([after - before for before, after in pairwise(states)]).double()
    assert float(moved.std()) * 4 == pytest.approx(1, rel=5 * (2 * moved.numel()) ** -0.5)
    assert summary["privacy"]["releases"] == 3
    ledger = rows(fleet.server.directory / "ledger.jsonl")
    assert [row["released"] for row in ledger] == [[0, 1, 2, 3]] * 3


def _states(store):
    with store.connections.read("read the states") as connection:
        blobs = connection.exec_driver_sql("SELECT blob FROM states ORDER BY round").all()
    return [load(bytes(blob))["weights"] for (blob,) in blobs]


# Ten fleets


class Whimsical(threading.Thread):
    """A client that comes late, answers, answers late or not at all, and notes what it did."""

    def __init__(self, served, k, rng):
        super().__init__(daemon=True)
        self._served, self._rng = served, rng
        self._delay = rng.choice([0.0, 0.0, rng.uniform(0.5, 2.0)])
        self._k = k
        self.sent, self.accepted = set(), set()

    def run(self):
        sleep(self._delay)
        with suppress(OSError):  # the server has gone
            peer = self._served.peer(client=self._k)
            while (got := peer.poll(1.0)).status == 200 and got.json["type"] != "done":
                if got.json["type"] == "work":
                    self._work(peer, got.json)

    def _work(self, peer, offer):
        whim = self._rng.random()
        if whim < 0.25:
            sleep(0.7)
            return
        if whim < 0.4:
            sleep(1.3)  # the deadline is over by then
        self.sent.add((offer["round"], offer["attempt"]))
        if answer(peer, offer).status == 200:
            self.accepted.add((offer["round"], offer["attempt"]))


def whimsical_fleet(directory, seed):
    """Runs one; returns what each client really gave away in the rounds up to each, and the noise."""
    rng = random.Random(seed)
    local = rng.random() < 0.5
    plan = private_plan(LOCAL if local else AT_SERVER, C=rng.choice([0.25, 0.5, 1.0]), rounds=rng.randint(2, 3))
    rules = Rules(1.0, rng.choice([1.0, 1.5]), rng.choice([0.5, 1.0, 1.0]) if plan.C < 1 else 0.5)
    with serving(directory, plan, minimum=2, rules=rules, linger_s=2.0, join_uses=K) as served:
        clients = [Whimsical(served, k, random.Random(rng.random())) for k in rng.sample(range(K), rng.randint(4, 7))]
        for client in clients:
            client.start()
        wait_until(lambda: served.status()["done"], "the last round", 4 * PATIENCE_S)
    done = {(row["round"], row["attempt"]) for row in rows(directory / "ledger.jsonl") if row["state"] == "done"}
    for client in clients:
        client.join(PATIENCE_S)
    return [
        {round for round, _ in client.sent} if local else {round for round, _ in client.accepted & done}
        for client in clients
    ], (LOCAL_NOISE if local else 2.0)


def masked_fleet(directory, seed):
    """Real devices under secure aggregation, of which some are killed, and a server that is."""
    rng = random.Random(seed)
    stages = ("clip:0.5", "weigh:equal", "noise:2.0:where=clients:dropout=0.5")
    plan = device_plan(stages, C=0.5, rounds=3, secagg="complete:12:1")
    with Fleet(directory, plan, 5, "--deadline", "6") as fleet:
        for committed in (0, 1):
            fleet.server.wait_for(lambda s, least=committed: s["committed"] >= least and s["round"], "a round")
            sleep(rng.uniform(0, 0.5))
            victim = rng.choice([*fleet.devices, fleet.server])
            victim.kill()
            victim.start(*([fleet.token] if victim is not fleet.server else []))
        fleet.finished()
        with fleet.database() as store:
            counted = {round: store.counted(round).clients for round in (1, 2, 3)}
    return [{round for round, clients in counted.items() if k in clients} for k in range(5)], 2.0


@pytest.mark.parametrize("seed", range(10))
def test_the_ledger_is_never_below_what_the_record_of_participation_gives(tmp_path, seed):
    """Epsilon again, by another formula, from the published record and from what clients themselves know."""
    truth, noise = (masked_fleet if seed % 4 == 3 else whimsical_fleet)(tmp_path, seed)
    directory = tmp_path if (tmp_path / "ledger.jsonl").exists() else tmp_path / "run"
    record, metrics = rows(directory / "ledger.jsonl"), rows(directory / "metrics.jsonl")
    once = metrics[0]["ledger"]["mechanism"] == "gaussian, each client by itself"
    for row in metrics:
        until = next(i for i, line in enumerate(record) if (line["round"], line["state"]) == (row["round"], "done"))
        lines = record[: until + 1]
        given = {(k, line["round"], 0 if once else line["attempt"]) for line in lines for k in line["released"]}
        recorded = max(sum(k == client for k, _, _ in given) for client in range(K))
        known = max(sum(round <= row["round"] for round in rounds) for rounds in truth)
        assert known <= recorded == row["ledger"]["releases"]
        assert exact_epsilon(recorded, noise) <= row["epsilon"] < 2 * exact_epsilon(recorded, noise) + 1
        assert lines[-1]["epsilon"] == row["epsilon"]
    print(f"{len(metrics)} rounds, {len(record)} attempts, epsilon {metrics[-1]['epsilon']:.2f}")
