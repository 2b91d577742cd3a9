"""What a server has learned about its devices, for a sampler that looks back at earlier rounds.

It is part of the server's state, committed with each round, so it survives a restart. Losses and durations come from
real devices: a client's loss is self-reported, within the bounds that hold for all updates.
"""

from collections.abc import Mapping, Sequence
from math import nan
from typing import final

import numpy as np

from fedavg.fleets.fleet import Abandoned, CohortResult
from fedavg.fleets.http.server.gathering import Total
from fedavg.samplers.memory import CohortSeen, Memory, from_slots, grown, learned, to_slots
from fedavg.types import Population, Slots


@final
class Lookback:
    """Keeps nothing unless `wanted`."""

    def __init__(self, wanted: bool) -> None:
        self._memory = Memory.of_nothing(0) if wanted else None
        self._there = np.zeros(0, bool)

    def memory(self, present: Population) -> Memory | None:
        """What is known when a cohort is drawn from the present clients. More may have enrolled since the last draw."""
        if self._memory is None:
            return None
        assert present.sizes is not None, "devices enrol with what they have"
        self._there = present.sizes > 0
        self._memory = grown(self._memory, len(present.sizes))
        return self._memory

    def learn(
        self, round: int, asked: Sequence[int], reported: Sequence[int], result: CohortResult | Abandoned
    ) -> None:
        """Learn from an attempt: who was asked, whose update is known to be in the sum, and the result."""
        if self._memory is None:
            return
        clients, count = np.array(sorted(asked), np.int64), self._memory.there.shape[0]
        there = np.pad(self._there, (0, count - len(self._there)))
        counted = np.isin(clients, np.array(reported if isinstance(result, CohortResult) else (), np.int64))
        losses, seconds = (_of(clients, told) for told in _told(result))
        self._memory = learned(self._memory, CohortSeen(round, there, clients, counted, losses, seconds))

    def slots(self) -> Slots:
        return to_slots(self._memory) if self._memory else {}

    def recall(self, slots: Slots) -> None:
        if self._memory is not None and slots:
            self._memory = from_slots(slots)


def losses_of(totals: Sequence[Total]) -> dict[int, float]:
    """The training loss of each named client."""
    everyone = [received for *_, received_of_group in totals for received in received_of_group]
    return {r.client: r.metrics["train_loss"] for r in everyone if r.client is not None and "train_loss" in r.metrics}


def seconds_of(totals: Sequence[Total]) -> dict[int, float]:
    """For each named client, the seconds from the opening of the round to the arrival of its update."""
    everyone = [received for *_, received_of_group in totals for received in received_of_group]
    return {r.client: r.seconds for r in everyone if r.client is not None and r.seconds is not None}


def _told(result: CohortResult | Abandoned) -> tuple[Mapping[int, float], Mapping[int, float]]:
    return (result.losses, result.seconds) if isinstance(result, CohortResult) else ({}, {})


def _of(clients: np.ndarray, told: Mapping[int, float]) -> np.ndarray:
    return np.array([told.get(int(k), nan) for k in clients], np.float64)
