"""The parts of an operator's week: a service as a command with TLS, its devices as processes, and what is simulated."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import torch
from harness import _log_to, free_port, log_lines, start_command, wait_until
from operated import Operated

from fedavg import ArrayData, Connection, Device, Examples
from fedavg.fleets.http.protocol.certs import client_context
from fedavg.fleets.http.server.logs import log_to_stderr
from fedavg.types import FederatedData
from fleet_peers import HOST
from programs import Forked, fedavg
from toys import blobs

NODE = shutil.which("node")
NODE_CLIENT = Path(__file__).parents[3] / "examples" / "node-client" / "client.mjs"
TOY, LINE = "tiny:TASK", "lines:LINE"


class ServiceProcess:
    """`fedavg serve` without a plan, with TLS, on one port; and the commands of its operator."""

    def __init__(self, directory, certificates):
        self.port, self.log, self._certificates = free_port(), directory / "service.log", certificates
        self.url, self.ca = f"https://{HOST}:{self.port}", certificates / "ca.pem"
        self.run_dir, self._process = directory, None

    def start(self, run_dir, database, *options):
        self.run_dir = run_dir
        pair = ("--cert", str(self._certificates / "server.pem"), "--key", str(self._certificates / "server.key"))
        before = len(self.lines("serving"))
        self._process = start_command(
            self.log, "serve", "--run-dir", str(run_dir), "--db", database, "--listen", f"{HOST}:{self.port}", *pair,
            "--allow", "tiny", "--allow", "lines", "--allow", "toys", *options,
        )  # fmt: skip
        wait_until(lambda: len(self.lines("serving")) > before, "the service")

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def stop(self):
        os.kill(self._process.pid, signal.SIGTERM)
        self._process.join(120)
        return self._process.exitcode

    def reload(self):
        os.kill(self._process.pid, signal.SIGHUP)
        wait_until(lambda: self.lines("certificates reloaded"), "the new certificate")

    def lines(self, event):
        return [line for line in log_lines(self.log) if line.get("event") == event]

    def command(self, *words, url_by=None):
        """What a command of the operator prints."""
        where = ("--server", self.url) if url_by is None else ()
        done = fedavg(*words, *where, "--ca", self.ca, "--admin-token-file", self.run_dir / "admin-token")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def asked(self, command, *words):
        """What a command prints that takes the address as its first word."""
        return self.command(command, self.url, *words, url_by="word")

    @property
    def seen(self):
        """The same service, asked without a command each time."""
        return Operated(self.port, self.run_dir, client_context(self.ca))

    def runs(self):
        return {run["run"]: run for run in self.seen.runs()}

    def wait_for_state(self, number, state):
        wait_until(lambda: self.runs()[number]["state"] == state, f"run {number} to be {state}")


def _run_device(url, folder, k, token, ca):
    """An app with a device in it: it takes part in both tasks, reads its data from files, and keeps every model."""
    _log_to(folder / "log")
    log_to_stderr()

    def keep(model):
        line = {"task": model.task, "round": model.round, "sha256": model.sha256}
        with (folder / "models.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    data = {TOY: folder / "toy.npz", LINE: folder / "line.npz"}
    device = Device(
        url, set(data), data, state=folder / "state", token=token, client=k, connection=Connection(ca=ca), on_model=keep
    )
    device.run(5.0)


class DeviceApp:
    """That app in its own process."""

    def __init__(self, folder, k, toy, line):
        self.k, self.folder = k, folder / f"device-{k}"
        self.folder.mkdir()
        self.keep(toy, "toy.npz")
        self.keep(line, "line.npz")

    def keep(self, examples, name="toy.npz"):
        """From now on its owner's data is these examples."""
        whole = self.folder / f"new-{name}"
        np.savez(whole, x=examples.x.numpy(), y=examples.y.numpy())
        whole.rename(self.folder / name)

    def start(self, service, token):
        self._process = Forked(target=_run_device, args=(service.url, self.folder, self.k, token, service.ca))
        self._process.start()

    def pause(self):
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self):
        self._process.kill()
        self._process.join()

    def models(self):
        file = self.folder / "models.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class JoinedDevice:
    """`fedavg join` for one task."""

    def __init__(self, folder, k, line):
        self.k, self.folder = k, folder / f"device-{k}"
        self.folder.mkdir()
        np.savez(self.folder / "line.npz", x=line.x.numpy(), y=line.y.numpy())

    def start(self, service, token):
        (self.folder / "token").write_text(token)
        self._process = start_command(
            self.folder / "log", "join", service.url, "--data", str(self.folder / "line.npz"), "--task", LINE,
            "--client", str(self.k), "--token-file", str(self.folder / "token"), "--ca", str(service.ca),
            "--state", str(self.folder / "state"), "--charging", "yes", "--unmetered", "yes",
            "--model-out", str(self.folder / "model.safetensors"),
        )  # fmt: skip

    def kill(self):
        self._process.kill()
        self._process.join()

    def ended(self):
        self._process.join(60)
        return self._process.exitcode


class NodeDevice:
    """The client in JavaScript, which knows the protocol but nothing of this package."""

    def __init__(self, folder, line):
        self.folder = folder / "node"
        self.folder.mkdir()
        own = {"x": line.x[:, 0].tolist(), "y": line.y[:, 0].tolist()}
        (self.folder / "own.json").write_text(json.dumps(own))

    def start(self, service, token):
        (self.folder / "token").write_text(token)
        self._out = (self.folder / "out").open("wb")
        words = [service.url, self.folder / "state", LINE, self.folder / "own.json", self.folder / "token"]
        environment = os.environ | {"NODE_EXTRA_CA_CERTS": str(service.ca)}
        self._process = subprocess.Popen([NODE, NODE_CLIENT, *words], stdout=self._out, env=environment)

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._out.close()

    def models(self):
        return [json.loads(line) for line in (self.folder / "out").read_text().splitlines()]


def toy_examples(sizes):
    """Examples by client number, without overlap."""
    x, y = blobs(sum(sizes.values()), seed=4)
    parts = np.split(np.arange(len(y)), np.cumsum(list(sizes.values()))[:-1])
    return {k: Examples(x[part], y[part]) for k, part in zip(sizes, parts, strict=True)}


def line_examples(clients):
    x = {k: torch.linspace(-1, 1, 2 + k % 3)[:, None] + 0.1 * k for k in clients}
    return {k: Examples(each, 2 * each - 1 + 0.05 * k) for k, each in x.items()}


def as_data(examples):
    """The same clients for the simulator, with the same numbers; other clients have no examples."""
    numbers = range(max(examples) + 1)
    x, y = (torch.cat([getattr(examples[k], name) for k in numbers if k in examples]) for name in "xy")
    sizes = [len(examples[k]) if k in examples else 0 for k in numbers]
    return ArrayData("week", x, y, np.split(np.arange(len(y)), np.cumsum(sizes)[:-1]), None)


class Grown(FederatedData):
    """Data that changes from a given round on."""

    name, fingerprint = "grown", "grown"

    def __init__(self, before, after, first):
        self._before, self._after, self._first = before, after, first

    @property
    def sizes(self):
        return self._before.sizes

    def client(self, k):
        return self._before.client(k)

    def at(self, round):
        return self._after if round >= self._first else self._before
