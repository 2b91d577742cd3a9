"""The actor that Ray runs on a node: a `Station` behind remote calls. Imported only if Ray is installed."""

import pickle
import traceback
from collections.abc import Sequence

import numpy as np
import ray
from ray import cloudpickle

from fedavg.errors import FedAvgError, FleetError, TaskError
from fedavg.fleets.ray.rings import RingPlace
from fedavg.fleets.ray.station import FetchKey, Introduction, Station
from fedavg.plan import Plan


def pack_plan(plan: Plan) -> np.ndarray:
    """A plan with its objects as bytes, which the actor itself unpacks so that it can report missing code."""
    try:
        return np.frombuffer(cloudpickle.dumps(plan), np.uint8)
    except Exception as error:  # whatever the user's objects raise
        raise FleetError(
            f"the plan holds an object that cannot be sent to another process: {type(error).__name__}: {error}; "
            "expected classes and functions of a module or of the script itself, without open files, locks and the like"
        ) from error


def _unpack_plan(data: np.ndarray) -> Plan:
    try:
        plan: Plan = cloudpickle.loads(data.data)
    except ImportError as error:
        raise FleetError(f"{error}, which the plan needs") from error
    return plan


def _told(error: FedAvgError) -> FedAvgError:
    """The error with a remedy, if code is missing only on a node."""
    missing = isinstance(error.__cause__, ImportError)
    return type(error)(f"{error}; install it there, or send it along: code=FOLDER") if missing else error


class Actor:
    """One long-lived worker. Methods of the concurrency group `aside` are answered while it works."""

    def introduce(self, plan: np.ndarray) -> Introduction | FedAvgError:
        """Get ready: load the data, build and verify the model. A failure is returned, since the user has to fix it."""
        try:
            self._station = Station(_unpack_plan(plan))
            return self._station.introduction()
        except FedAvgError as error:
            return _told(error)
        except Exception:
            return TaskError(f"a worker could not get ready:\n{traceback.format_exc()}")

    def share_pieces(self, last: bool, *pieces: bytes) -> None:
        """The same in pieces, for when the object store is full."""
        self._station.share_pieces(last, pieces)

    def feed(self, client: int, *pieces: bytes) -> None:
        self._station.feed(client, pieces)

    def do(self, call: int, jobs: bytes, shared: np.ndarray | None = None) -> bytes:
        """Do these jobs; `shared`, if given, is what they and later jobs read.

        Jobs and their `Report` are sent as bytes: Ray's own serialisation takes several times as long, and the
        driver serialises for all actors.
        """
        if shared is not None:
            self._station.share(shared)
        return pickle.dumps(self._station.do(call, pickle.loads(jobs)))

    def add_up(self, rings: list[RingPlace]) -> np.ndarray | FedAvgError:
        """The sum over this node's workers; only of more than one client, because it goes through the object store."""
        try:
            return self._station.add_up(rings)
        except FedAvgError as error:
            return error

    def hold_sum(self, rings: list[RingPlace]) -> int | FedAvgError:
        """The same, held so that it can be fetched in pieces; returns its size in bytes."""
        try:
            return self._station.hold_sum(rings)
        except FedAvgError as error:
            return error

    def fetch(self, key: FetchKey, first: int, count: int) -> Sequence[bytes] | bytes:
        pieces = self._station.fetch(key, first, count)
        return pieces if count > 1 else pieces[0]  # Ray expects a single result without a list

    @ray.method(concurrency_group="aside")
    def give_back(self, call: int) -> list[int] | None:
        return self._station.give_back(call)

    @ray.method(concurrency_group="aside")
    def how_far(self) -> tuple[int, float]:
        return self._station.how_far()
