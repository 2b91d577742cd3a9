"""Several replicas as real processes behind nginx, and clients: devices, or driven by hand."""

import os
import shutil
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
from harness import PATIENCE_S, DeviceProcess, Hand, Server, free_port, wait_until
from safetensors.torch import load
from tiny import FEW, SIZES, few_plan, tiny_plan

import fedavg
from fedavg.cohorts import sample_cohort
from fedavg.fleets.http.server.store import Store
from fedavg.runlog.checkpoint import from_tensors
from fedavg.setup import population_of, resolve_data

CLIENTS, DEVICES = len(SIZES), len(FEW)
#: More rounds than any test has time for.
ENDLESS = 100_000
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="needs nginx (Debian: nginx-light)")
FRONT = Path(__file__).parents[3] / "deploy" / "nginx-fleet.conf"


@cache
def simulated(plan):
    return fedavg.run(plan).summary.model_sha256


class Front:
    """nginx in front of the replicas; `listens` is the rest of its `listen` after the address, and more directives."""

    def __init__(self, directory, ports, listens=""):
        scheme = "https" if listens else "http"
        self.url = f"{scheme}://127.0.0.1:{(port := free_port())}"
        servers = "".join(f"server 127.0.0.1:{each} max_fails=1 fail_timeout=1s; " for each in ports)
        self._config = directory / "nginx.conf"
        temporary = "".join(
            f"{name}_temp_path {directory}/nginx-{name};"
            for name in ("proxy", "client_body", "fastcgi", "uwsgi", "scgi")
        )
        self._config.write_text(
            f"pid {directory}/nginx.pid; error_log {directory}/nginx.log; events {{}} "
            f"http {{ access_log off; {temporary} upstream replicas {{ {servers} keepalive 16; }} "
            f"server {{ listen 127.0.0.1:{port} {listens}; set $replicas http; include {FRONT}; }} }}"
        )

    @contextmanager
    def running(self):
        process = subprocess.Popen([NGINX, "-c", str(self._config), "-g", "daemon off; master_process off;"])
        try:
            yield
        finally:
            process.kill()
            process.wait()


class Replicas:
    """`count` replicas, and devices; with a front, all devices reach all replicas through it."""

    def __init__(self, directory, plan, count, url, *options, front=False, clients=DEVICES, tls=None):
        """`tls`: how clients connect to replicas."""
        self.plan, self.url = plan, url
        common = ("--replica", "--db", url, "--min-clients", str(max(clients, 1)), "--linger", "5", *options)
        self.replicas = []
        for number in range(count):
            (directory / f"replica-{number}").mkdir(parents=True)
            self.replicas.append(Server(directory / f"replica-{number}", plan, *common, tls=tls))
        self.front = Front(directory, [replica.port for replica in self.replicas]) if front else None
        gates = [self.front] if front else self.replicas
        self.devices = [DeviceProcess(gates[k % len(gates)], k, directory) for k in range(clients)]
        self._keys = []
        self._stack = ExitStack()

    def __enter__(self):
        if self.front:
            self._stack.enter_context(self.front.running())
        for replica in self.replicas:
            replica.start()
            self._stack.callback(lambda replica=replica: replica.kill())
        token = self.token
        for device in self.devices:
            device.start(token)
            self._stack.callback(device.kill)
        return self

    def __exit__(self, *_):
        self._stack.close()
        for hand in (hand for replica in self.replicas for hand in replica.hands):
            hand.link.close()

    @property
    def token(self):
        """The one join token, made by whichever replica was first."""
        files = [replica.directory / "join-token" for replica in self.replicas]
        made = lambda: [file for file in files if file.exists()]  # noqa: E731
        wait_until(lambda: all(replica.status() for replica in self.replicas) and len(made()) == 1, "one join token")
        return made()[0].read_text()

    @property
    def admin_token(self):
        files = [replica.directory / "admin-token" for replica in self.replicas]
        return next(file for file in files if file.exists()).read_text()

    def enrol(self, count):
        """`count` clients driven by hand, at any replica."""
        maker = next(replica for replica in self.replicas if (replica.directory / "join-token").exists())
        self._keys = [Hand(maker, k).link.signer.key for k in range(count)]

    def offers(self, *replicas):
        """Clients 0, 1, ..., each at one of the replicas; and their offers."""
        hands = [self.hand(replica, k) for k, replica in enumerate(replicas)]
        for hand in hands:
            hand.poll(0)
        return hands, [hand.offered() for hand in hands]

    def hand(self, replica, k):
        return Hand(replica, k, self._keys[k])

    @property
    def leader(self):
        """The replica that became leader last."""
        began = [(line["term"], replica) for replica in self.replicas for line in replica.lines("leading")]
        return max(began, key=lambda pair: pair[0])[1] if began else None

    def committed(self):
        return max((replica.status() or {}).get("committed", 0) for replica in self.replicas)

    def wait_for_round(self, round):
        wait_until(lambda: self.committed() >= round, f"round {round}", 4 * PATIENCE_S)

    def wait_for_another_round(self):
        self.wait_for_round(self.committed() + 1)

    @contextmanager
    def held_open(self):
        """In the middle of a round: all updates but one have arrived, and that one is held until the end."""
        last = self.devices[-1].process.pid
        all_but_one = lambda status: status["round"] and status["round"]["accepted"] == len(self.devices) - 1  # noqa: E731
        os.kill(last, signal.SIGSTOP)
        try:
            wait_until(
                lambda: any(all_but_one(found) for each in self.replicas if (found := each.status())),
                "all updates but one",
            )
            yield
        finally:
            os.kill(last, signal.SIGCONT)
        self.wait_for_another_round()

    def check(self):
        """All have ended well, with the simulator's model; every client of each cohort counted exactly once."""
        for replica in self.replicas:
            assert replica.ended(4 * PATIENCE_S) == 0, replica.log.read_text()[-3000:]
            assert replica.summary()["model_sha256"] == simulated(self.plan)
        assert self._counted_once() == self.plan.rounds
        for device in self.devices:
            device.process.join(PATIENCE_S)
            assert device.process.exitcode == 0, device.log.read_text()[-2000:]

    def check_so_far(self):
        """The same for the rounds so far; stops the replicas first."""
        for replica in self.replicas:
            assert replica.stop() == 0, replica.log.read_text()[-3000:]
        reached = self._counted_once()
        with Store.open(self.url) as store:
            state = from_tensors(load(store.last_state()[1]))
        wanted = next(event for event in fedavg.train(self.plan) if getattr(event, "round", 0) == reached)
        assert state.weights.equal(wanted.state.weights)

    def _counted_once(self):
        """How many rounds are committed, each with every client of its cohort."""
        assert not [line for replica in self.replicas for line in replica.lines() if "trace" in line]
        population = population_of(resolve_data(self.plan))
        with Store.open(self.url) as store:
            for round in range(1, store.last_round() + 1):
                assert store.counted(round).clients == set(sample_cohort(self.plan, population, round))
            return store.last_round()


def full_plan(**changes):
    """For clients driven by hand."""
    return tiny_plan(**{"C": 1.0, "clients": CLIENTS, **changes})


def devices_plan(**changes):
    return few_plan(**{"C": 1.0, **changes})
