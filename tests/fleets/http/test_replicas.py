"""One server of several processes: real replicas on a real PostgreSQL, killed, paused and cut off from it."""

import os
import random
import signal
from contextlib import ExitStack
from functools import cache
from time import monotonic, sleep

import pytest
from harness import PATIENCE_S, DeviceProcess, Server, wait_until
from postgres import emptied, start_postgres
from tiny import DATA, SIZES, tiny_plan

import fedavg
from fedavg.fleets.http.server.store import Store
from fedavg.samplers.cohort import sample_cohort
from fedavg.setup import population_of, resolve_data


@pytest.fixture(scope="module")
def postgres():
    server = start_postgres("fsync = off")
    yield server
    server.cleanup()


@pytest.fixture
def url(postgres):
    return emptied(postgres)


@cache
def simulated(plan):
    return fedavg.run(plan).summary.model_sha256


class Replicas:
    """So many replicas, and devices that reach them through one address."""

    def __init__(self, directory, plan, count, clients, url, *options):
        self.plan, self.url = plan, url
        common = ("--replica", "--db", url, "--min-clients", str(clients), "--linger", "4", *options)
        self.replicas = []
        for number in range(count):
            (directory / f"replica-{number}").mkdir(parents=True)
            self.replicas.append(Server(directory / f"replica-{number}", plan, *common))
        self._directory, self._clients = directory, clients
        self._stack = ExitStack()

    def __enter__(self):
        for replica in self.replicas:
            replica.start()
            self._stack.callback(replica.kill)
        self.devices = [
            DeviceProcess(self.replicas[k % len(self.replicas)], k, self._directory) for k in range(self._clients)
        ]
        token = self.token
        for device in self.devices:
            device.start(token)
            self._stack.callback(device.kill)
        return self

    def __exit__(self, *_):
        self._stack.close()

    @property
    def token(self):
        made = lambda: [r.directory / "join-token" for r in self.replicas if (r.directory / "join-token").exists()]  # noqa: E731
        wait_until(lambda: all(r.status() for r in self.replicas) and len(made()) == 1, "one join token")
        return made()[0].read_text()

    @property
    def leader(self):
        """The replica that has begun to lead last."""
        began = {r: r.lines("leading") for r in self.replicas}
        return max((r for r in self.replicas if began[r]), key=lambda r: began[r][-1]["term"], default=None)

    def committed(self):
        return max(((r.status() or {}).get("committed", 0) for r in self.replicas), default=0)

    def check(self):
        """All have ended well, with the simulator's model; every client of each cohort counted, once."""
        for replica in self.replicas:
            assert replica.ended(4 * PATIENCE_S) == 0, replica.log.read_text()[-3000:]
            assert replica.summary()["model_sha256"] == simulated(self.plan)
        population = population_of(resolve_data(self.plan))
        with Store.open(self.url) as store:
            assert store.last_round() == self.plan.rounds
            for round in range(1, self.plan.rounds + 1):
                assert store.counted(round).clients == set(sample_cohort(self.plan, population, round))


def test_two_replicas_give_the_model_of_the_simulator(tmp_path, url):
    with Replicas(tmp_path, tiny_plan(rounds=4, C=1.0, clients=len(SIZES)), 2, len(SIZES), url) as fleet:
        fleet.check()
        gathered = [line for replica in fleet.replicas for line in replica.lines("gathered")]
        assert [line["replicas"] for line in gathered] == [2] * 4, "both have taken updates in each round"
