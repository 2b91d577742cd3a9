"""Sends bytes that must not enter Ray's object store, which may spill to disk, in pieces inside the calls.

Ray sends an argument or a result along with its call if it is smaller than 100 KiB, up to 10 MiB for one call; anything
larger goes through the object store. A single update (a sum over one client), ring elements and what clients keep are
sent this way, each call with as many pieces as fit.
"""

from collections.abc import Iterator, Sequence
from typing import Final

#: Well below Ray's limit for data inside a call, with room for the header of a serialised object.
PIECE_BYTES: Final = 80 << 10
#: Pieces of one call: 7.5 MiB.
PIECES: Final = 96
CALL_BYTES: Final = PIECE_BYTES * PIECES


def cut(data: bytes | memoryview) -> list[bytes]:
    """Cut bytes into pieces, in order; at least one."""
    view = memoryview(data)
    return [bytes(view[start : start + PIECE_BYTES]) for start in range(0, max(len(view), 1), PIECE_BYTES)]


def count_of(size: int) -> int:
    """The number of pieces for this many bytes."""
    return max(-(-size // PIECE_BYTES), 1)


def calls(pieces: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The pieces of each call."""
    for start in range(0, len(pieces), PIECES):
        yield pieces[start : start + PIECES]
