"""Replies of a worker, read as they arrive: a worker that stops in the middle of a reply does not block its reader."""

import os
import struct
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from time import monotonic
from typing import Any, Final

HEADER: Final = struct.Struct("<Q")
CHUNK_BYTES: Final = 1 << 20
#: Messages are collected up to this total length, or for this long.
TOGETHER_BYTES: Final = 1 << 15
TOGETHER_S: Final = 0.02
#: Pipes of POSIX are streams of bytes. On Windows a message arrives whole or not at all.
STREAMS: Final = sys.platform != "win32"


def send(pipe: Connection, message: object) -> None:
    """Write a whole message, for an `Inbox` at the other end."""
    outbox = Outbox(pipe)
    outbox.put(message)
    outbox.flush()


class Outbox:
    """The writing end: short messages are sent together, since each write wakes the reader; none waits for long."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting = bytearray()
        self._since = monotonic()

    def put(self, message: object) -> None:
        if not STREAMS:
            self._pipe.send(message)
            return
        data = ForkingPickler.dumps(message)
        self._waiting += HEADER.pack(len(data))
        self._waiting += data
        if len(self._waiting) > TOGETHER_BYTES or monotonic() - self._since > TOGETHER_S:
            self.flush()

    def flush(self) -> None:
        with memoryview(self._waiting) as rest:
            written = 0
            while written < len(rest):
                written += os.write(self._pipe.fileno(), rest[written:])
        self._waiting.clear()
        self._since = monotonic()


class Inbox:
    """The reading end of a pipe from a process that was started here."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._arrived = bytearray()

    def take(self) -> list[Any] | None:
        """The complete messages so far, perhaps none; None once the other end is gone.

        It never blocks when the pipe has something to read.
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
            return HEADER.size + 1  # its length is not known yet: ask for more than there is
        return HEADER.size + int(HEADER.unpack_from(self._arrived)[0])
