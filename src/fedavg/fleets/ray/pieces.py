"""Bytes that must not enter Ray's object store, which may spill to a disk: in pieces that travel inside the calls.

Ray sends an argument or a result along with its call if it is smaller than 100 KiB, up to 10 MiB for one call; all
else goes through the object store. A single update (a sum over one client), ring elements and what clients keep go this
way, each call with as many pieces as fit.
"""

from collections.abc import Iterator, Sequence
from typing import Final

#: Well below Ray's limit for what travels inside a call, with room for the head that a serialised object has.
PIECE_BYTES: Final = 80 << 10
#: Pieces of one call: 7.5 MiB.
PIECES: Final = 96
CALL_BYTES: Final = PIECE_BYTES * PIECES


def cut(data: bytes | memoryview) -> list[bytes]:
    """The pieces of some bytes, in order; at least one."""
    view = memoryview(data)
    return [bytes(view[start : start + PIECE_BYTES]) for start in range(0, max(len(view), 1), PIECE_BYTES)]


def count_of(size: int) -> int:
    """How many pieces this many bytes are."""
    return max(-(-size // PIECE_BYTES), 1)


def calls(pieces: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The pieces of each call."""
    for start in range(0, len(pieces), PIECES):
        yield pieces[start : start + PIECES]
