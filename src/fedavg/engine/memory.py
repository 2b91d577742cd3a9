"""How processes of a run keep and release memory. Except on Linux with glibc, most of it does nothing."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
KEEP_BYTES: Final = 1 << 30
MADV_DONTNEED: Final = 4
#: Mappings with less than this in memory are not worth a call.
WORTHWHILE_KB: Final = 256


def keep_freed_memory() -> None:
    """Keep freed memory in the process: activations are freed and allocated again every step, and glibc would unmap
    large ones, so that each step pays for page faults."""
    mallopt = _libc("mallopt")
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEEP_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEEP_BYTES)


def trim() -> None:
    """Returns freed memory to the system."""
    malloc_trim = _libc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def let_go_of_cycles() -> None:
    """Frees objects that only reference cycles keep alive, and returns the memory to the system."""
    gc.collect()
    trim()


def settle_before_fork() -> None:
    """Collect garbage, which would otherwise be copied to every worker. Objects that remain are frozen, since a
    collector that looks at an object copies its page; `gc.unfreeze` undoes that."""
    let_go_of_start_up()
    _START_UP.over = True
    gc.collect(1)
    trim()
    gc.freeze()


@dataclass
class StartUp:
    """Over when the process has forked workers once: memory loaded after that is in use."""

    over: bool = False


_START_UP: Final = StartUp()


def let_go_of_start_up() -> None:
    """Frees what was needed only to import PyTorch. It takes 0.2 s, so of many short runs only the first does it."""
    if not _START_UP.over:
        gc.collect()
        unmap_libraries()


def unmap_libraries() -> None:
    """Unmap library pages; the system maps those that are needed again from its cache, at their first use. A mapping
    that was written to is left alone."""
    madvise = _libc("madvise")
    if madvise is None:
        return
    for mapping in _mappings():
        if mapping.of_file and mapping.read_only and not mapping.changed_kb and mapping.resident_kb > WORTHWHILE_KB:
            size = ctypes.c_size_t(mapping.end - mapping.start)
            madvise(ctypes.c_void_p(mapping.start), size, MADV_DONTNEED)


@dataclass(frozen=True)
class Mapping:
    """A range of addresses, as listed in /proc/self/smaps."""

    start: int
    end: int
    read_only: bool
    of_file: bool
    resident_kb: int
    #: The size of pages that differ from the file.
    changed_kb: int


def _mappings() -> Iterator[Mapping]:
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    head: list[str] = []
    numbers: dict[str, int] = {}
    for line in lines:
        name, _, rest = line.partition(":")
        if " " not in name:
            numbers[name] = int(rest.split()[0]) if rest.endswith("kB") else 0
        else:
            head, numbers = line.split(maxsplit=5), {}
        if name == "VmFlags":  # the last line of a mapping
            start, end = (int(address, 16) for address in head[0].split("-"))
            of_file = len(head) > 5 and head[5].startswith("/") and not head[5].startswith("/dev/")
            changed = numbers.get("Anonymous", 1) + numbers.get("Swap", 1)
            yield Mapping(start, end, "w" not in head[1], of_file, numbers.get("Rss", 0), changed)


def _libc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
