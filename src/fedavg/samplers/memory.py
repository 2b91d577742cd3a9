"""What a server has learned about its clients, round by round: for samplers that look back, and for reports."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Memory:
    """All of shape (K,). `rounds` is how many cohorts have been drawn, including those of abandoned attempts.

    >>> Memory.of_nothing(3).reported.tolist()
    [0, 0, 0]
    """

    rounds: int
    #: In how many of those cohorts the client could have been asked, was asked, and reported.
    there: np.ndarray
    asked: np.ndarray
    reported: np.ndarray
    #: The round of its last report, 0 if there was none; its training loss there, and how many seconds it took.
    last: np.ndarray
    loss: np.ndarray
    seconds: np.ndarray

    @staticmethod
    def of_nothing(clients: int) -> "Memory":
        counts = [np.zeros(clients, np.int32) for _ in range(4)]
        return Memory(0, *counts, *(np.full(clients, np.nan, np.float32) for _ in range(2)))

    @property
    def presence(self) -> np.ndarray:
        """How often each client is there, estimated with one prior success and one prior failure: never 0 or 1."""
        share: np.ndarray = (self.there + 1) / (self.rounds + 2)
        return share


@dataclass(frozen=True)
class CohortSeen:
    """What one cohort showed: who could be asked, shape (K,) bool; and of those that were asked, shape (N,), who they
    are, whether they reported, with which training loss (NaN if unknown), and after how many seconds."""

    round: int
    there: np.ndarray
    clients: np.ndarray
    reported: np.ndarray
    losses: np.ndarray
    seconds: np.ndarray


def learned(memory: Memory, seen: CohortSeen) -> Memory:
    """The memory after one more cohort. It reuses the arrays of `memory`, which must not be used any more: with a
    million clients, copies would cost more than everything else that the clock does."""
    told = seen.clients[seen.reported]
    memory.there[:] += seen.there
    memory.asked[seen.clients] += 1
    memory.reported[told] += 1
    memory.last[told] = seen.round
    memory.loss[told] = seen.losses[seen.reported]
    memory.seconds[told] = seen.seconds[seen.reported]
    return replace(memory, rounds=memory.rounds + 1)


def grown(memory: Memory, clients: int) -> Memory:
    """The memory of this many clients, with new ones that have not been there; unchanged if there are no more."""
    more = clients - len(memory.there)
    if more <= 0:
        return memory
    new = Memory.of_nothing(more)
    names = [spec.name for spec in fields(Memory) if spec.name != "rounds"]
    return replace(
        memory,
        rounds=memory.rounds,
        **{name: np.concatenate([getattr(memory, name), getattr(new, name)]) for name in names},
    )


def to_slots(memory: Memory) -> "dict[str, Tensor]":
    """As a server's state keeps it."""
    import torch

    arrays = {spec.name: getattr(memory, spec.name) for spec in fields(Memory) if spec.name != "rounds"}
    return {"rounds": torch.tensor([memory.rounds]), **{name: torch.tensor(own) for name, own in arrays.items()}}


def from_slots(slots: "Mapping[str, Tensor]") -> Memory:
    arrays = {spec.name: slots[spec.name].numpy().copy() for spec in fields(Memory) if spec.name != "rounds"}
    return replace(Memory.of_nothing(0), rounds=int(slots["rounds"]), **arrays)
