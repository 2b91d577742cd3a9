"""The last changes of a model as they are sent: each frame of the downlink after its length, oldest first.

    (u32 LE length of the frame | frame) ...

The last n changes are a suffix of the whole, so all clients read the same bytes, however many changes they missed.
"""

from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import Final

from fedavg.errors import DataError

_LENGTH: Final = Struct("<I")


class KeptChanges:
    """The server's side: the changes that it keeps."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._data = b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames)
        self._starts = list(accumulate((_LENGTH.size + len(frame) for frame in frames), initial=0))[:-1]

    def last(self, count: int) -> memoryview | None:
        """The bytes of the newest `count` changes; None if fewer are kept."""
        if not 0 < count <= len(self._starts):
            return None
        return memoryview(self._data)[self._starts[-count] :]


def most(whole: int) -> int:
    """The largest number of changes that together are smaller than a model of `whole` bytes."""
    return whole // (_LENGTH.size + 1)


def longest(count: int, whole: int) -> int:
    """The most bytes that a server sends for `count` changes of a model of `whole` bytes."""
    return whole + _LENGTH.size * count


def split(data: bytes, count: int) -> list[bytes]:
    """The client's side: the frames in untrusted `data`; DataError unless there are exactly `count`."""
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
