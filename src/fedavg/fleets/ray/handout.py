"""Who does which job: pure logic, without clocks, processes or Ray.

All jobs are dealt at once, the largest first, each to the worker with the least to do: a round costs one message per
worker, not one per client. A worker that is done early takes over jobs that others have not started ("stealing"). The
jobs that a lost worker had done in this list are done again, because its sum is lost with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heapreplace
from typing import final


@dataclass
class _WorkerPart:
    """One worker's part of the list."""

    #: Handed over and not yet reported, in order.
    given: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    #: A call is under way.
    busy: bool = False
    #: The worker was asked to give jobs back, and has not answered.
    asked: bool = False
    #: The worker had nothing to give back from its current call.
    spent: bool = False


@final
class Handout:
    """The jobs of one list: `sizes[i]` is how much work job i is, in any unit."""

    def __init__(self, sizes: Sequence[float], most: int | None = None) -> None:
        """`most`: a worker is given at most this many jobs at once."""
        self._sizes = sizes
        self._most = most or len(sizes)
        self._waiting = sorted(range(len(sizes)), key=self._rank)
        self._shares: dict[int, _WorkerPart] = {}

    def _rank(self, job: int) -> tuple[float, int]:
        return (-self._sizes[job], job)

    # ------------------------------------------------------------------ who is there

    def joins(self, slot: int) -> None:
        self._shares[slot] = _WorkerPart()

    def lost(self, slot: int) -> None:
        """The worker is gone, and all of its work with it."""
        share = self._shares.pop(slot, None)
        if share:
            self._wait([*share.done, *share.given])

    def __contains__(self, slot: int) -> bool:
        return slot in self._shares

    # ------------------------------------------------------------------ who does what

    def deal(self) -> dict[int, list[int]]:
        """Jobs for idle workers, largest first; each list is in the order of execution."""
        loads = [(0.0, 0, slot) for slot, share in self._shares.items() if self._idle(share)]
        dealt: dict[int, list[int]] = {}
        for place, job in enumerate(self._waiting):
            if not loads:
                self._waiting = self._waiting[place:]
                break
            load, count, slot = loads[0]
            dealt.setdefault(slot, []).append(job)
            if count + 1 < self._most:
                heapreplace(loads, (load + self._sizes[job], count + 1, slot))
            else:
                heappop(loads)
        else:
            self._waiting = []
        for slot, jobs in dealt.items():
            share = self._shares[slot]
            share.given, share.busy, share.spent = list(jobs), True, False
        return dealt

    @staticmethod
    def _idle(share: _WorkerPart) -> bool:
        return not share.busy and not share.asked

    def reported(self, slot: int, done: Iterable[int]) -> None:
        """A worker has finished its jobs; it may have given some back meanwhile."""
        share = self._shares[slot]
        share.busy = False
        for job in done:
            share.given.remove(job)
            share.done.append(job)

    def victim(self) -> int | None:
        """The worker to ask for jobs back, if another is idle and no job waits; None if there is none to ask."""
        if self._waiting or not any(self._idle(share) for share in self._shares.values()):
            return None
        able = {s: self._left(share) for s, share in self._shares.items() if self._may_give(share)}
        return max(able, key=lambda slot: able[slot]) if able else None

    def _may_give(self, share: _WorkerPart) -> bool:
        return share.busy and not share.asked and not share.spent and len(share.given) > 1

    def _left(self, share: _WorkerPart) -> float:
        return sum(self._sizes[job] for job in share.given)

    def asked(self, slot: int) -> None:
        self._shares[slot].asked = True

    def given_back(self, slot: int, jobs: Iterable[int] | None) -> None:
        """The worker's answer: the jobs that it will not do, perhaps none; None if its call had not started."""
        share = self._shares[slot]
        back = list(jobs or ())
        share.spent = share.asked and jobs is not None and not back  # not if it answers for an earlier list
        share.asked = False
        share.given = [job for job in share.given if job not in back]
        self._wait(back)

    def _wait(self, jobs: list[int]) -> None:
        self._waiting = sorted([*self._waiting, *jobs], key=self._rank)

    # ------------------------------------------------------------------ what is done

    @property
    def complete(self) -> bool:
        return not self._waiting and not any(share.given or share.busy for share in self._shares.values())

    def doing(self, slot: int) -> list[int]:
        return self._shares[slot].given if slot in self._shares and self._shares[slot].busy else []

    @property
    def by_slot(self) -> dict[int, list[int]]:
        """The jobs that each worker did, if it did any."""
        return {slot: share.done for slot, share in self._shares.items() if share.done}
