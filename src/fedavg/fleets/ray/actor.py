"""The actor that Ray runs on a node: a `Station` behind calls. Imported only where Ray is."""

import traceback
from collections.abc import Sequence

import numpy as np
import ray

from fedavg.errors import FedAvgError, TaskError
from fedavg.fleets.ray.rings import RingPlace
from fedavg.fleets.ray.station import Introduction, Key, Report, Station
from fedavg.fleets.worker import Job
from fedavg.plan import Plan


class Actor:
    """One long-lived worker. Methods of the group `aside` are answered while it works."""

    def introduce(self, plan: Plan) -> Introduction | FedAvgError:
        """Get ready: load the data, build and prove the model. What fails is told, since it is a user's to mend."""
        try:
            self._station = Station(plan)
            return self._station.introduction()
        except FedAvgError as error:
            return error
        except Exception:
            return TaskError(f"a worker could not get ready:\n{traceback.format_exc()}")

    def share_pieces(self, last: bool, *pieces: bytes) -> None:
        """The same where the object store has no room."""
        self._station.share_pieces(last, pieces)

    def feed(self, client: int, *pieces: bytes) -> None:
        self._station.feed(client, pieces)

    def do(self, call: int, jobs: list[tuple[int, Job]], shared: np.ndarray | None = None) -> Report:
        """Do these jobs; `shared`, if it comes, is what they and those after them read."""
        if shared is not None:
            self._station.share(shared)
        return self._station.do(call, jobs)

    def add_up(self, rings: list[RingPlace]) -> np.ndarray | FedAvgError:
        """The sum over this node's workers; only of more than one client, for it goes through the object store."""
        try:
            return self._station.add_up(rings)
        except FedAvgError as error:
            return error

    def hold_sum(self, rings: list[RingPlace]) -> int | FedAvgError:
        """The same, to be fetched in pieces: its bytes."""
        try:
            return self._station.hold_sum(rings)
        except FedAvgError as error:
            return error

    def fetch(self, key: Key, first: int, count: int) -> Sequence[bytes] | bytes:
        pieces = self._station.fetch(key, first, count)
        return pieces if count > 1 else pieces[0]  # what Ray wants for one result

    @ray.method(concurrency_group="aside")
    def give_back(self, call: int) -> list[int] | None:
        return self._station.give_back(call)

    @ray.method(concurrency_group="aside")
    def how_far(self) -> tuple[int, float]:
        return self._station.how_far()
