"""What clients keep between rounds: residuals of a codec, control variates of an algorithm.

In deployment it is on the device; in simulation in the run directory. It is kept in a few append-only files, so
that a hundred thousand clients need no more files than ten, and half a million cost nothing until they are picked. Each
process that writes has its own files. A version is named by the round that made it: `mark` records how far the files
reached after a round, and `rewind` returns all clients to that point, byte for byte.

What simulated clients keep between two checkpoints need not be on disk: after a crash it is computed again. So it stays
in memory as far as it fits (`recent.py`), and `flush` writes the last versions before a checkpoint.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from math import prod
from multiprocessing import parent_process
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor

from fedavg.errors import DiskError, FleetError
from fedavg.files import sync
from fedavg.recent import RecentStates
from fedavg.segments import (
    WITHDRAWN,
    Damaged,
    RecordPlace,
    SegmentWriter,
    read,
    read_whole,
    scan,
    segment_path,
    segments,
)

#: A file that reaches this size is followed by another; only such files are ever tidied.
SEGMENT_BYTES: Final = 64 << 20
#: Versions of a client that are kept: the last, and those that it may have to go back to.
VERSIONS: Final = 3

#: How far each file counts, by its name: `mark` returns it and `rewind` takes it.
Mark = Mapping[str, int]


def packed(state: dict[str, Tensor]) -> bytes:
    """Named tensors as bytes: names, types and shapes as JSON, then the numbers, each tensor at a multiple of 16 bytes.

    For tens of kilobytes this takes a tenth of the time that safetensors needs.
    """
    return b"".join(_parts(state))


def _parts(state: dict[str, Tensor]) -> list[bytes | memoryview]:
    """The same in pieces, without copying the numbers."""
    parts: list[bytes | memoryview] = [_head(tuple((name, t.dtype, tuple(t.shape)) for name, t in state.items()))]
    for tensor in state.values():
        numbers = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        parts += [numbers, bytes(_aligned(numbers.nbytes) - numbers.nbytes)]
    return parts


def unpacked(data: bytearray) -> dict[str, Tensor]:
    """The tensors in packed bytes; they share the memory of `data`."""
    size = int.from_bytes(data[:8], "little")
    state = {}
    for name, dtype, shape, place in _layout(bytes(data[8 : 8 + size])):
        count = prod(shape)
        flat = torch.frombuffer(data, dtype=dtype, count=count, offset=place) if count else torch.empty(0, dtype=dtype)
        state[name] = flat.reshape(shape)
    return state


@lru_cache(maxsize=64)
def _head(tensors: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]) -> bytes:
    """The header before the numbers. Clients keep tensors of the same names and shapes, so it is cached."""
    heads = [[name, str(dtype).removeprefix("torch."), list(shape)] for name, dtype, shape in tensors]
    text = json.dumps(heads).encode()
    head = len(text).to_bytes(8, "little") + text
    return head.ljust(_aligned(len(head)), b"\0")


@lru_cache(maxsize=64)
def _layout(head: bytes) -> list[tuple[str, torch.dtype, list[int], int]]:
    """Name, type, shape and offset of each tensor, from the JSON before the numbers."""
    place = _aligned(8 + len(head))
    layout = []
    for name, kind, shape in json.loads(head):
        dtype = getattr(torch, kind)
        layout.append((name, dtype, shape, place))
        place += _aligned(prod(shape) * dtype.itemsize)
    return layout


def _aligned(size: int) -> int:
    return -(-size // 16) * 16


class StateStore(Protocol):
    """What a client's path needs from a store of states."""

    def load(self, k: int, before: int) -> dict[str, Tensor]:
        """What client k kept in its last round before this one; empty if there was none."""

    def save(self, k: int, round: int, state: dict[str, Tensor]) -> None:
        """Keep a version; another of the same round takes its place."""


class ClientStates:
    """Small named tensors by client and round, under one directory; forked processes may use it concurrently."""

    def __init__(
        self,
        root: Path,
        *,
        durable: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        recent: RecentStates | None = None,
    ) -> None:
        """If `durable`, each save survives a machine crash at once; otherwise only what a `mark` covers does.

        `recent` holds versions from one `flush` to the next. Processes that use the files concurrently share it.
        """
        self.root = root
        self._durable = durable
        self._recent = recent
        self._segment_bytes = segment_bytes
        self._versions: dict[int, list[RecordPlace]] = {}
        #: How far each file has been read, and where the last rounds end in it.
        self._read: dict[int, int] = {}
        self._ends: dict[int, dict[int, int]] = {}
        self._seen_for = -1
        self._writer: SegmentWriter | None = None
        self._owner = self._creator = os.getpid()
        #: Versions that were withdrawn, until they are saved again.
        self._withdrawn: dict[tuple[int, int], RecordPlace] = {}
        #: The bytes at the last tidying, the files known to have no writer, and the files to be dropped.
        self._tidied_bytes = 0
        self._closed: set[int] = set()
        self._outdated: set[int] = set()
        self._synced: dict[int, int] = {}
        if root.is_dir():
            self._refresh()
            self._closed = set(self._read)

    def load(self, k: int, before: int) -> dict[str, Tensor]:
        """What client k kept in its last round before this one; empty if there was none."""
        if before != self._seen_for:  # when a round begins, all versions of earlier rounds exist
            self._refresh()
            self._seen_for = before
        earlier = [place for place in self._versions.get(k, ()) if place.round < before]
        recent = self._recent.last(k, before) if self._recent else 0
        if self._recent and recent and (not earlier or recent >= earlier[-1].round):
            return unpacked(self._recent.get(k, recent))
        if not earlier:
            return {}
        return unpacked(read(self._path(earlier[-1].segment), earlier[-1]))

    def save(self, k: int, round: int, state: dict[str, Tensor]) -> None:
        """Keep a version; another of the same round takes its place."""
        parts = _parts(state)
        if not (self._recent and self._recent.put(k, round, parts)):
            self._append(k, round, b"".join(parts))

    def flush(self) -> None:
        """Write what is still only in memory, earlier rounds first, so that a `mark` can tell them apart.

        A caller must call this again before the next checkpoint: only after the first call do versions stay in memory.
        """
        if not self._recent:
            return
        self._recent.open()
        for version in self._recent.new():
            self._append(version.client, version.round, version.payload)

    def discard(self, k: int, round: int) -> None:
        """Forget a version: its round did not count."""
        if self._recent:
            self._recent.forget(k, round)
        if any(place.round == round for place in self._versions.get(k, ())):
            self._append(k, round, b"", WITHDRAWN)

    def mark(self, round: int) -> dict[str, int]:
        """Makes all versions up to a round durable, and returns how far the files reach with them."""
        self.flush()
        if not self.root.is_dir():
            return {}
        self._refresh()
        reached = {segment: self._end_of(segment, round) for segment in self._read if segment not in self._outdated}
        grown = [segment for segment, end in reached.items() if end > self._synced.get(segment, 0)]
        for segment in grown:
            sync(self._path(segment))
        if grown:
            sync(self.root)
            sync(self.root.parent)
        self._synced = reached
        return {self._path(segment).name: end for segment, end in reached.items() if end}

    @staticmethod
    def verify(root: Path, mark: Mark) -> None:
        """Refuses files in which any byte up to a mark is lost or altered."""
        for name, end in mark.items():
            path, reached = root / name, 0
            if path.is_file():
                for place in scan(path, 0, 0, payloads=True, end=end):
                    reached = place.end
            if reached != end:
                raise Damaged(f"{path} has {reached} whole bytes of what clients kept; expected {end}")

    @staticmethod
    def rewind(root: Path, mark: Mark) -> None:
        """Returns all clients to a mark; everything after it is deleted. For files that are not in use yet."""
        if not root.is_dir():
            return
        for path in (segment_path(root, segment) for segment in segments(root)):
            if path.name not in mark:
                path.unlink()
            elif path.stat().st_size > mark[path.name]:
                os.truncate(path, mark[path.name])
                sync(path)
        sync(root)

    def tidy(self, round: int) -> None:
        """Copies what is still needed after a round out of files that are mostly outdated.

        Later marks do not need those files. They stay until `drop_outdated`, since an earlier mark may need them.
        """
        if not self.root.is_dir():
            return
        self._refresh()
        total = sum(self._read.values())
        if total < self._tidied_bytes + self._segment_bytes:
            return
        live: dict[int, list[RecordPlace]] = {}
        for place in self._needed_after(round):
            live.setdefault(place.segment, []).append(place)
        outdated = {segment for segment in self._read if self._mostly_outdated(segment, live.get(segment, []))}
        places = [place for segment in outdated for place in live.get(segment, [])]
        self._copy(sorted(places, key=lambda place: place.round))
        self._outdated |= outdated
        self._tidied_bytes = sum(self._read[segment] for segment in self._read if segment not in self._outdated)

    def drop_outdated(self, marks: Iterable[Mark] = ()) -> None:
        """Deletes the files that are outdated and in none of the marks."""
        needed = {name for mark in marks for name in mark}
        for segment in [segment for segment in self._outdated if self._path(segment).name not in needed]:
            self._path(segment).unlink(missing_ok=True)
            self._outdated.discard(segment)

    def settle(self, round: int) -> None:
        """No client can go back past this round any more, so versions outdated by then can be deleted."""
        self.tidy(round)
        self.drop_outdated()

    def _needed_after(self, round: int) -> Iterator[RecordPlace]:
        for versions in self._versions.values():
            upto = [place for place in versions if place.round <= round]
            yield from upto[-1:]
            yield from (place for place in versions if place.round > round)
        yield from self._withdrawn.values()

    # ------------------------------------------------------------------ files

    def _path(self, segment: int) -> Path:
        return segment_path(self.root, segment)

    def _append(self, k: int, round: int, payload: bytes | memoryview, flags: int = 0) -> None:
        try:
            place = self._live_writer().append(k, round, payload, flags)
            if self._durable:
                self._live_writer().sync()
        except OSError as error:
            raise DiskError(f"cannot write to {self.root}: {error.strerror}; free space, then resume") from error
        self._know(place)
        self._read[place.segment] = place.end

    def _live_writer(self) -> SegmentWriter:
        """This process's own file: a forked process begins its own, and stops when its parent is gone.

        Another server may then have resumed the run from an earlier round.
        """
        parent = parent_process()
        if self._creator not in (os.getpid(), os.getppid()) or (parent and not parent.is_alive()):
            raise FleetError(f"the server that uses {self.root} is gone; nothing more is kept there")
        if self._owner != os.getpid():
            self._owner, self._writer = os.getpid(), None
        if self._writer and self._writer.size >= self._segment_bytes:
            self._closed.add(self._writer.segment)
            self._writer.close()
            self._writer = None
        if self._writer is None:
            self.root.mkdir(parents=True, exist_ok=True)
            self._writer = SegmentWriter(self.root)
            if self._durable:
                sync(self.root)
        return self._writer

    def _refresh(self) -> None:
        """Reads what other processes have written since."""
        if not self.root.is_dir():
            return
        there = segments(self.root)
        for segment in there:
            with suppress(FileNotFoundError):  # just dropped
                for place in scan(self._path(segment), segment, self._read.setdefault(segment, 0), payloads=False):
                    self._know(place)
                    self._read[segment] = place.end
        for gone in set(self._read) - set(there):
            del self._read[gone]
            self._ends.pop(gone, None)

    def _know(self, place: RecordPlace) -> None:
        ends = self._ends.setdefault(place.segment, {})
        ends[place.round] = place.end
        if len(ends) > VERSIONS:
            del ends[next(iter(ends))]
        key = (place.client, place.round)
        if place.withdrawn:
            self._withdrawn[key] = place
        else:
            self._withdrawn.pop(key, None)
        versions = [known for known in self._versions.get(place.client, ()) if known.round != place.round]
        if not place.withdrawn:
            versions.append(place)
            if len(versions) > 1 and versions[-2].round > place.round:
                versions.sort(key=lambda known: known.round)
        self._versions[place.client] = versions[-VERSIONS:]

    def _end_of(self, segment: int, round: int) -> int:
        """Where the versions up to a round end; those of a later, unfinished round follow."""
        later = [number for number in self._ends.get(segment, {}) if number > round]
        if not later:
            return self._read[segment]
        earlier = [end for number, end in self._ends[segment].items() if number <= round]
        return max(earlier, default=0)

    def _mostly_outdated(self, segment: int, live: list[RecordPlace]) -> bool:
        if segment in self._outdated:
            return False
        full = self._read[segment] >= self._segment_bytes
        return (full or segment in self._closed) and 2 * sum(place.bytes for place in live) < self._read[segment]

    def _copy(self, places: list[RecordPlace]) -> None:
        if not places:
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            writer = SegmentWriter(self.root)
            for place in places:
                copy = writer.append_whole(place, read_whole(self._path(place.segment), place))
                self._know(copy)
            self._read[writer.segment] = writer.size
            self._closed.add(writer.segment)
            writer.sync()
            writer.close()
        except OSError as error:
            raise DiskError(f"cannot write to {self.root}: {error.strerror}; free space, then resume") from error
