"""Sums from workers: one worker of each node adds up the node's sums, then they are added here. Each node sends one
vector.

The sums of workers on this node are read directly from their memory, without a call. A sum over a single client is that
client's update, and does not pass through Ray's object store (`pieces.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import ray
import torch
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError
from torch import Tensor

from fedavg.errors import FedAvgError
from fedavg.fleets.ray import pieces
from fedavg.fleets.ray.crew import ReadyActor
from fedavg.fleets.ray.rings import RingGone, add_rings
from fedavg.fleets.ray.station import SUM, FetchKey
from fedavg.sums import checked_bound

#: How long an idle worker may take to hand over what it holds, in seconds.
HAND_OVER_S: Final = 300.0


@dataclass(frozen=True)
class Adder:
    """A worker that added the updates of `clients` clients; no number of its sum exceeds the bound."""

    member: ReadyActor
    clients: int
    bound: int


class LostSum(Exception):
    """A worker is gone, with what it had added."""

    def __init__(self, slot: int, error: RayError) -> None:
        super().__init__(str(error))
        self.slot, self.error = slot, error


def total_over(nodes: Sequence[Sequence[Adder]], size: int) -> Tensor:
    """The exact sum over the workers of all nodes, shape (size,) int64; each node's are together."""
    bound = 0
    for adder in (adder for adders in nodes for adder in adders):
        bound = checked_bound(bound, adder.bound)
    here = ray.get_runtime_context().get_node_id()
    asked = [(adders, None if adders[0].member.node.id == here else _ask(adders)) for adders in nodes]
    total = np.zeros(size, np.int64)
    for adders, answer in asked:  # nodes add in parallel
        total += _read(adders, size) if answer is None else _answered(adders, answer)
    return torch.from_numpy(total)


def _read(adders: Sequence[Adder], size: int) -> np.ndarray:
    """The sum over this node's workers; one of them adds it if this process may not read their memory."""
    try:
        return add_rings(_rings(adders), size)
    except RingGone:
        return _answered(adders, _ask(adders))


def _ask(adders: Sequence[Adder]) -> Any:
    leader, alone = adders[0].member.handle, sum(adder.clients for adder in adders) == 1
    return (leader.hold_sum if alone else leader.add_up).remote(_rings(adders))


def _answered(adders: Sequence[Adder], answer: Any) -> np.ndarray:
    """A node's sum, whole or in pieces."""
    leader = adders[0].member
    try:
        try:
            found = ray.get(answer, timeout=HAND_OVER_S)
        except (ObjectStoreFullError, OutOfDiskError):
            found = ray.get(leader.handle.hold_sum.remote(_rings(adders)), timeout=HAND_OVER_S)
        if isinstance(found, int):
            found = np.frombuffer(fetched(leader, SUM, found), np.int64)
    except RayError as error:
        raise LostSum(leader.slot, error) from error
    if isinstance(found, RingGone):
        gone = next(adder.member for adder in adders if adder.member.introduction.pid == found.pid)
        raise LostSum(gone.slot, RayError(str(found)))
    if isinstance(found, FedAvgError):
        raise found
    return np.asarray(found)


def _rings(adders: Sequence[Adder]) -> list[Any]:
    return [adder.member.introduction.ring for adder in adders]


def fetched(member: ReadyActor, key: FetchKey, size: int) -> bytearray:
    """This many bytes that a worker holds, in pieces; raises Ray's error if the worker is gone."""
    data, left = bytearray(), pieces.count_of(size)
    while left:
        first, count = pieces.count_of(len(data)) if data else 0, min(left, pieces.PIECES)
        refs = member.handle.fetch.options(num_returns=count).remote(key, first, count)
        for piece in ray.get(refs if count > 1 else [refs], timeout=HAND_OVER_S):
            data += piece
        left -= count
    return data
