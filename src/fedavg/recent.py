"""The last two versions of what each client keeps, as bytes in memory that a process shares with its forks.

Nothing here outlives the processes. A worker that dies loses only the version that it was writing: the one before is
untouched until the new one is complete. This module does not know what the bytes mean.
"""

import sys
from collections.abc import Iterator, Sequence
from mmap import mmap
from typing import Final, NamedTuple, final

import numpy as np

#: Versions of a client: the last one, and the one that it goes back to if its round is repeated.
VERSIONS: Final = 2
#: A client's place is not worth having if it is smaller than this; there would be too many places.
LEAST_BYTES: Final = 4096
#: The notes on a version: its round (0: there is none), its length in bytes, how often its place was written.
_ROUND, _LENGTH, _WRITES = range(3)


class RecentVersion(NamedTuple):
    """A complete version. The payload is the place itself: it is valid until the place is written again."""

    round: int
    client: int
    payload: memoryview


@final
class RecentStates:
    """Places of one size for every client. Only what is written takes memory."""

    def __init__(self, clients: int, place_bytes: int) -> None:
        self._place_bytes = place_bytes
        notes = 1 + clients * VERSIONS * 3
        self._memory = mmap(-1, 8 * notes + clients * VERSIONS * place_bytes)
        self._is_open, self._notes = np.split(np.frombuffer(self._memory, np.int64, notes), [1])
        #: Shape (clients, VERSIONS, 3).
        self._notes = self._notes.reshape(clients, VERSIONS, 3)
        self._bytes = memoryview(self._memory)[8 * notes :]
        #: How often each place had been written when `new` last returned it; private to this process.
        self._seen = np.zeros((clients, VERSIONS), np.int64)

    @classmethod
    def within(cls, budget_bytes: int, clients: int) -> "RecentStates | None":
        """The budget in equal parts; None if they would be too small, or if the system commits unused memory."""
        place_bytes = budget_bytes // (max(clients, 1) * VERSIONS) // 16 * 16
        return cls(clients, place_bytes) if place_bytes >= LEAST_BYTES and sys.platform != "win32" else None

    def open(self) -> None:
        """Accept versions from now on, in all processes: the caller will collect new ones before they are needed."""
        self._is_open[0] = 1

    def put(self, k: int, round: int, parts: Sequence[bytes | memoryview]) -> bool:
        """Keep a version in place of the oldest, or of the same round. False if it is too large or this is not open
        yet: then no version of that round is kept."""
        self.forget(k, round)
        length = sum(len(part) for part in parts)
        if length > self._place_bytes or not self._is_open[0]:
            return False
        version = int(self._notes[k, :, _ROUND].argmin())
        note, at = self._notes[k, version], self._at(k, version)
        note[_ROUND] = 0  # until it is complete
        for part in parts:
            self._bytes[at : at + len(part)] = part
            at += len(part)
        note[_LENGTH] = length
        note[_WRITES] += 1
        note[_ROUND] = round
        return True

    def forget(self, k: int, round: int) -> None:
        self._notes[k, self._notes[k, :, _ROUND] == round, _ROUND] = 0

    def last(self, k: int, before: int) -> int:
        """The round of a client's last version before this round; 0 if there is none."""
        rounds = self._notes[k, :, _ROUND]
        return int(rounds.max(initial=0, where=rounds < before))

    def get(self, k: int, round: int) -> bytearray:
        """A copy of an existing version."""
        (version,) = np.flatnonzero(self._notes[k, :, _ROUND] == round)
        return bytearray(self._payload(k, int(version)))

    def new(self) -> Iterator[RecentVersion]:
        """All versions put since the last call, in the order of their rounds."""
        unseen = (self._notes[:, :, _ROUND] > 0) & (self._notes[:, :, _WRITES] != self._seen)
        places = sorted((int(self._notes[k, v, _ROUND]), int(k), int(v)) for k, v in np.argwhere(unseen))
        for round, k, version in places:
            yield RecentVersion(round, k, self._payload(k, version))
            self._seen[k, version] = self._notes[k, version, _WRITES]

    def _payload(self, k: int, version: int) -> memoryview:
        at = self._at(k, version)
        return self._bytes[at : at + int(self._notes[k, version, _LENGTH])]

    def _at(self, k: int, version: int) -> int:
        return (k * VERSIONS + version) * self._place_bytes
