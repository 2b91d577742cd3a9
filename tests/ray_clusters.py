"""A real Ray cluster of several nodes on this machine, without its dashboard and with small object stores."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from hashlib import sha256

import numpy as np
import torch
from torch import nn

from fedavg import Examples, FederatedData
from fedavg.data.location import data_directory

STORE_BYTES = 80 << 20


@contextmanager
def ray_cluster(*cpus, **head):
    """A cluster whose nodes have these numbers of cores, as far as Ray knows."""
    from ray.cluster_utils import Cluster

    # Workers at Ray's own niceness of 15 would wait for all other tests.
    changes = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    nodes = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], **nodes, **head})
    cluster.more = lambda count: cluster.add_node(num_cpus=count, object_store_memory=STORE_BYTES)
    try:
        for count in cpus[1:]:
            cluster.more(count)
        yield cluster
    finally:
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def fleet_of(cluster, **settings):
    from fedavg import RayFleet

    host, port = cluster.address.rsplit(":", 1)
    return RayFleet(host, int(port), **settings)


class Slow(nn.Module):
    """A slow module, so that something can happen in the middle of a client."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        time.sleep(0.01)
        return self.out(x)


class Elsewhere(FederatedData):
    """Data that does something when a process other than the one that made it asks for a client."""

    name, fingerprint = "elsewhere", "elsewhere-1"

    def __init__(self, inner: FederatedData, client: int, deed: Callable[[], None]) -> None:
        self._inner, self._client, self._deed, self._home = inner, client, deed, os.getpid()

    @property
    def sizes(self) -> np.ndarray:
        return self._inner.sizes

    def client(self, k: int) -> Examples:
        if k == self._client and os.getpid() != self._home:
            self._deed()
        return self._inner.client(k)

    @property
    def test(self) -> Examples | None:
        return self._inner.test


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise OSError("not today")


def wide_net() -> nn.Module:
    """Weights and sums are larger than what Ray sends without its object store."""
    return nn.Sequential(nn.Linear(8, 4000), nn.ReLU(), nn.Linear(4000, 3))


class Points(FederatedData):
    """Four clients with ten points each; a point's label is the largest of its first three numbers."""

    name = "points"
    sizes = np.full(4, 10)

    def __init__(self) -> None:
        self._points = self._read()

    def _read(self) -> np.ndarray:
        return np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)

    def client(self, k: int) -> Examples:
        x = torch.from_numpy(self._points[10 * k : 10 * k + 10])
        return Examples(x, x[:, :3].argmax(1))

    @property
    def fingerprint(self) -> str:
        return sha256(self._points.tobytes()).hexdigest()[:16]


class FromDataFolder(Points):
    """The same from a file in the data directory of the process that loads it."""

    def _read(self) -> np.ndarray:
        return np.load(data_directory(None) / "points.npy")
