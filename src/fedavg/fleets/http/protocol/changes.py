"""The last changes of a model as they travel: each frame of the downlink after its length, oldest first.

    (u32 LE length of the frame | frame) ...

The last n of them are the end of the whole, so that all who fetch, however many they missed, read the same bytes.
"""

from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import Final

from fedavg.errors import DataError

_LENGTH: Final = Struct("<I")


class KeptChanges:
    """The server's side: the changes that it still has."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._data = b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames)
        self._starts = list(accumulate((_LENGTH.size + len(frame) for frame in frames), initial=0))[:-1]

    def last(self, count: int) -> memoryview | None:
        """The bytes of the newest changes; None if there are not so many."""
        if not 0 < count <= len(self._starts):
            return None
        return memoryview(self._data)[self._starts[-count] :]


def most(whole: int) -> int:
    """How many changes there can be at most that are together less than a model of `whole` bytes."""
    return whole // (_LENGTH.size + 1)


def longest(count: int, whole: int) -> int:
    """No server sends more bytes for so many changes of a model that has `whole` bytes."""
    return whole + _LENGTH.size * count


def split(data: bytes, count: int) -> list[bytes]:
    """The client's side: the frames in what came, which is a stranger's; DataError if they are not so many."""
    frames: list[bytes] = []
    place = 0
    while place < len(data) and len(frames) < count:
        start = place + _LENGTH.size
        (length,) = _LENGTH.unpack(data[place:start]) if start <= len(data) else (len(data),)
        place = start + length
        frames.append(data[start:place])
    if place != len(data) or len(frames) != count:
        raise DataError(f"{len(data)} bytes of changes are not {count} frames after their lengths")
    return frames
