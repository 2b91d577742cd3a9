"""The Ray that a fleet runs on, its own on this machine or an existing one, and its nodes."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from socket import create_connection
from typing import Any, Final

from fedavg.errors import FleetError
from fedavg.fleets.ray.rings import supported

#: The address of a Ray that is started for the fleet, on this machine.
LOCAL: Final = "local"
#: The address of whatever Ray this machine is part of.
AUTO: Final = "auto"
#: How long a cluster may take to answer at its address, in seconds.
CONNECT_S: Final = 20.0


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, and the cores that Ray assumes for it."""

    id: str
    host: str
    cpus: int


def check_installed() -> None:
    if find_spec("ray") is None:
        raise FleetError("fleet: got 'ray', which is not installed; expected it: pip install 'fedavg[ray]'")
    if not supported():
        raise FleetError("fleet: got 'ray', whose workers share memory in a way that only Linux has; expected 'local'")


def connect(address: str, cpus: int, code: Path | None) -> bool:
    """Connect to the Ray at an address. False if this process was connected already: then we must not disconnect."""
    import ray

    if ray.is_initialized():
        if code:
            raise FleetError(f"code: got '{code}', but Ray is initialised already; give it to ray.init: runtime_env")
        return False
    own = address == LOCAL
    options: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False} if own else {}
    if code:
        options["runtime_env"] = {"py_modules": [str(code)]}
    try:
        _check_reachable(address)
        with _environment(_OF_OUR_OWN | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} if own else {}):
            ray.init(address, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises plain exceptions, for example if a node did not start in time
        expected = (
            "expected it to start: is the machine busy, or out of memory?"
            if own
            else "expected one: ray start --head, or another version of Ray or Python here, the cluster's own"
        )
        raise FleetError(f"no Ray at '{address}': {_first_line(error)}; {expected}") from error
    return True


def _check_reachable(address: str) -> None:
    """Fail early: Ray itself would try for many minutes."""
    host, colon, port = address.rpartition(":")
    if colon:
        create_connection((host, int(port)), CONNECT_S).close()


#: Our own Ray sends no usage statistics, and its workers keep the niceness of the process that started them, as local
#: workers do: with Ray's default (niceness 15) they would wait for everything else on the machine.
_OF_OUR_OWN: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for processes started inside, such as workers that must find this process's code."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def disconnect() -> None:
    import ray

    with suppress(Exception):  # whatever fails: the run is over
        ray.shutdown()


def living_nodes() -> list[Node]:
    """The nodes that have cores, in the order of their names."""
    import ray

    rows: list[Mapping[str, Any]] = [row for row in ray.nodes() if row["Alive"]]
    nodes = [Node(row["NodeID"], row["NodeManagerHostname"], int(row["Resources"].get("CPU", 0))) for row in rows]
    return sorted((node for node in nodes if node.cpus), key=lambda node: (node.host, node.id))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
