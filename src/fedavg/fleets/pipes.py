"""Replies of a worker, read as they arrive: a worker that stops in the middle of one does not stop its reader."""

import os
import struct
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

HEADER: Final = struct.Struct("<Q")
CHUNK_BYTES: Final = 1 << 20
#: Pipes of POSIX are streams of bytes. On Windows a message arrives whole or not at all.
STREAMS: Final = sys.platform != "win32"


def send(pipe: Connection, message: object) -> None:
    """Writes a whole message; for `Inbox` at the other end."""
    if not STREAMS:
        pipe.send(message)
        return
    data = bytes(ForkingPickler.dumps(message))
    rest = memoryview(HEADER.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(pipe.fileno(), rest) :]


class Inbox:
    """The reading end of a pipe from a process that was started here."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._arrived = bytearray()

    def take(self) -> list[Any] | None:
        """The messages that are whole by now, perhaps none; None once the other end is gone.

        It never waits when the pipe has something to read.
        """
        try:
            return self._stream() if STREAMS else [self._pipe.recv()]
        except (OSError, EOFError):
            return None

    def _stream(self) -> list[Any] | None:
        chunk = os.read(self._pipe.fileno(), CHUNK_BYTES)
        if not chunk:
            return None
        self._arrived += chunk
        messages = []
        while (end := self._end_of_first()) <= len(self._arrived):
            messages.append(ForkingPickler.loads(self._arrived[HEADER.size : end]))
            del self._arrived[:end]
        return messages

    def _end_of_first(self) -> int:
        if len(self._arrived) < HEADER.size:
            return HEADER.size + 1  # its length is not known yet: more than there is
        return HEADER.size + int(HEADER.unpack_from(self._arrived)[0])
