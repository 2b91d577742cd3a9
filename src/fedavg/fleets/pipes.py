"""Replies of a worker, read as they arrive: a worker that stops in the middle of a reply does not block its reader."""

import os
import struct
import sys
from io import BytesIO
from multiprocessing.connection import Connection
from pickle import HIGHEST_PROTOCOL, Pickler, Unpickler
from time import monotonic
from typing import Any, Final

#: Before each frame: its bytes, and how many messages it has.
HEADER: Final = struct.Struct("<QQ")
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
    """The writing end: short messages are sent together in a frame, since each write wakes the reader; none waits for
    long."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._begin()

    def _begin(self) -> None:
        """A new frame. One pickler for all of it names a class once."""
        self._frame, self._count, self._since = BytesIO(), 0, monotonic()
        self._frame.write(bytes(HEADER.size))
        self._pickler = Pickler(self._frame, HIGHEST_PROTOCOL)

    def put(self, message: object) -> None:
        if not STREAMS:
            self._pipe.send(message)
            return
        self._pickler.dump(message)
        self._count += 1
        if self._frame.tell() > TOGETHER_BYTES or monotonic() - self._since > TOGETHER_S:
            self.flush()

    def flush(self) -> None:
        if self._count:
            with self._frame.getbuffer() as rest:
                HEADER.pack_into(rest, 0, len(rest) - HEADER.size, self._count)
                written = 0
                while written < len(rest):
                    written += os.write(self._pipe.fileno(), rest[written:])
        self._begin()


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
        messages: list[Any] = []
        while len(self._arrived) >= HEADER.size:
            size, count = HEADER.unpack_from(self._arrived)
            end = HEADER.size + size
            if len(self._arrived) < end:
                break
            unpickler = Unpickler(BytesIO(self._arrived[HEADER.size : end]))
            messages.extend(unpickler.load() for _ in range(count))
            del self._arrived[:end]
        return messages
