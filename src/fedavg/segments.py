"""Append-only files of small records: what a record looks like on disk, and how it is checked.

Every byte is under a digest. A record that a crash cut off at the end of a file is not there; one that is there and
does not match its digest is damaged, which is never taken for the other. Knows nothing of what records mean.
"""

import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from fedavg.errors import RunDirError

MAGIC: Final = b"FAS1"
#: Magic, flags, client, round, length of the payload; then the digest of the payload and that of all before it.
_FIELDS: Final = struct.Struct("<4sIQQQ")
DIGEST_BYTES: Final = 16
HEADER_BYTES: Final = _FIELDS.size + 2 * DIGEST_BYTES
_NOTHING: Final = bytes(HEADER_BYTES)
#: A record that takes an earlier one of the same client and round back.
WITHDRAWN: Final = 1


class RecordPlace(NamedTuple):
    """Where a record is: its file's number, where its payload begins and how long that is."""

    client: int
    round: int
    segment: int
    offset: int
    length: int
    withdrawn: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def bytes(self) -> int:
        return HEADER_BYTES + self.length


class Damaged(RunDirError):
    """A record is not what was written."""


def header(client: int, round: int, payload: bytes | memoryview, flags: int = 0) -> bytes:
    fields = _FIELDS.pack(MAGIC, flags, client, round, len(payload)) + _digest(payload)
    return fields + _digest(fields)


def _digest(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def scan(path: Path, segment: int, start: int, *, payloads: bool, end: int | None = None) -> Iterator[RecordPlace]:
    """The records from `start` to `end`, or to one that was cut off; with `payloads`, those are checked too."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        size = os.fstat(file).st_size
        size = size if end is None else min(end, size)
        while start + HEADER_BYTES <= size:
            head = _pread(file, HEADER_BYTES, start)
            if head == _NOTHING:  # the system had made room, but a crash came before the bytes
                return
            place = _parse(path, segment, start, head)
            if place.end > size:
                return
            if payloads:
                _check_payload(path, place, head, _pread(file, place.length, place.offset))
            yield place
            start = place.end
    finally:
        os.close(file)


def _pread(file: int, length: int, offset: int) -> bytes:
    """This many bytes, or those up to the end of the file."""
    os.lseek(file, offset, os.SEEK_SET)
    parts = []
    while length and (part := os.read(file, length)):
        parts.append(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read(path: Path, place: RecordPlace) -> bytearray:
    """A payload, checked against its digest."""
    whole = read_whole(path, place)
    return bytearray(memoryview(whole)[HEADER_BYTES:])


def read_whole(path: Path, place: RecordPlace) -> bytes:
    """A record with its header, both checked."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            whole = _pread(file, place.bytes, place.offset - HEADER_BYTES)
        finally:
            os.close(file)
    except OSError as error:
        raise Damaged(f"cannot read {path}: {error.strerror}; expected what client {place.client} kept") from None
    if len(whole) != place.bytes or _parse(path, place.segment, place.offset - HEADER_BYTES, whole) != place:
        raise _damaged(path, place.offset - HEADER_BYTES, f"the record of client {place.client}, round {place.round}")
    _check_payload(path, place, whole, memoryview(whole)[HEADER_BYTES:])
    return whole


def _parse(path: Path, segment: int, start: int, head: bytes) -> RecordPlace:
    magic, flags, client, round, length = _FIELDS.unpack_from(head)
    if _digest(head[: HEADER_BYTES - DIGEST_BYTES]) != head[HEADER_BYTES - DIGEST_BYTES : HEADER_BYTES]:
        raise _damaged(path, start, "the head of a record")
    if magic != MAGIC:
        raise Damaged(f"{path} has records of another kind ({magic!r}); expected {MAGIC!r}: use a matching fedavg")
    return RecordPlace(client, round, segment, start + HEADER_BYTES, length, bool(flags & WITHDRAWN))


def _check_payload(path: Path, place: RecordPlace, head: bytes, payload: bytes | memoryview) -> None:
    if _digest(payload) != head[_FIELDS.size : _FIELDS.size + DIGEST_BYTES]:
        what = f"what client {place.client} kept in round {place.round}"
        raise _damaged(path, place.offset, what)


def _damaged(path: Path, offset: int, what: str) -> Damaged:
    return Damaged(
        f"{path} is damaged at byte {offset}: {what} does not match its digest. A simulation resumes from before "
        "it; a device starts over once this folder is removed"
    )


class SegmentWriter:
    """Appends records to a new file of its own; a record is whole in it or not there."""

    def __init__(self, folder: Path) -> None:
        self.segment = max(segments(folder), default=0) + 1
        while True:
            self.path = segment_path(folder, self.segment)
            try:
                self._file = os.open(
                    self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600
                )
                break
            except FileExistsError:  # another process was faster
                self.segment += 1
        self.size = 0

    def append(self, client: int, round: int, payload: bytes | memoryview, flags: int = 0) -> RecordPlace:
        return self.append_whole(
            RecordPlace(client, round, self.segment, 0, len(payload), bool(flags & WITHDRAWN)),
            b"".join((header(client, round, payload, flags), payload)),
        )

    def append_whole(self, place: RecordPlace, record: bytes) -> RecordPlace:
        try:
            rest = memoryview(record)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, self.size)
            raise
        offset, self.size = self.size + HEADER_BYTES, self.size + len(record)
        return RecordPlace(place.client, place.round, self.segment, offset, place.length, place.withdrawn)

    def sync(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


@lru_cache(maxsize=1024)  # each record that is read needs one, and to join and spell a path takes as long as to read
def segment_path(folder: Path, segment: int) -> Path:
    return folder / f"{segment:08d}.states"


def segments(folder: Path) -> list[int]:
    """The numbers of the files that there are, in the order in which they were started."""
    return sorted(int(path.stem) for path in folder.glob("*.states") if path.stem.isdecimal())
