"""Kernels in C, built once per machine where there is a C compiler; whoever has one also has a way to do without.

Knows the compiler, where builds are kept, and how arrays are handed over. Whether a kernel runs hangs on the machine
and on FEDAVG_NATIVE alone (0: never build), never on a timing, since kernels round differently from what they stand in
for.
"""

import ctypes
import logging
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EPERM
from functools import cache
from hashlib import sha256
from pathlib import Path
from stat import S_ISLNK, S_ISVTX
from tempfile import TemporaryDirectory
from typing import Final

from torch import Tensor

from fedavg.errors import DiskError
from fedavg.files import user_cache, write_atomically

log = logging.getLogger("fedavg.run")

#: Set to 0, nothing is built though there is a compiler.
VARIABLE: Final = "FEDAVG_NATIVE"
FLAGS: Final = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC")
BUILD_TIMEOUT_S: Final = 60
#: Before a build that is kept stands its SHA-256.
DIGEST_BYTES: Final = 32
#: Lines of /proc/cpuinfo that say which instructions there are: `-march=native` uses them all.
INSTRUCTIONS: Final = ("model name", "flags", "Features", "CPU part")


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """The code of a C file, if it can be built here."""
    named = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if os.environ.get(VARIABLE) == "0" or not named:
        return None
    try:
        return _library(source, shlex.split(named))
    except (OSError, subprocess.SubprocessError) as error:  # a compiler that can not do this is as good as none
        _say(f"{source.name} is not used: {_reason(error)}; PyTorch's own operators run in its place")
        return None


def _library(source: Path, compiler: list[str]) -> ctypes.CDLL:
    folder = _own_folder()
    kept = folder / f"{source.stem}-{_digest(source, compiler)}.kernel" if folder else None
    built = _kept(kept) if kept else None
    if built is None:
        built = _built(source, compiler, folder)
        if kept:
            with suppress(DiskError):  # a full disk: it is built again by the next process
                write_atomically(kept, sha256(built).digest() + built, durable=False, private=True)
    return _loaded(built, f"{source.stem}.so", folder)


def _built(source: Path, compiler: list[str], folder: Path | None) -> bytes:
    with _private_folder(folder) as building:
        target = building / f"{source.stem}.so"
        command = [*compiler, *FLAGS, "-o", str(target), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_TIMEOUT_S)
        return target.read_bytes()


def _loaded(built: bytes, name: str, folder: Path | None) -> ctypes.CDLL:
    """Loads these very bytes: from a file that was made just for this, where nobody else can reach it."""
    with _private_folder(folder) as loading:
        target = loading / name
        target.write_bytes(built)
        return ctypes.CDLL(str(target))


def _kept(path: Path) -> bytes | None:
    """What an earlier process built; None if there is nothing, or if a byte of it is not as it was written."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, built = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    if sha256(built).digest() == digest:
        return built
    _say(f"{path} is damaged: it is built again")
    return None


def _own_folder() -> Path | None:
    """Where builds are kept; None where another user could put code there, or it can not be made."""
    try:
        folder = user_cache() / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        unsafe = _unsafe_part(folder)
        if unsafe is None and not os.access(folder, os.W_OK):
            return None
    except (OSError, DiskError) as error:
        _say(f"kernels are not kept, but built by each process: {_reason(error)}")
        return None
    if unsafe is None:
        return folder
    _say(f"kernels are not kept in {folder}, but built by each process: others can change {unsafe} (chmod go-w)")
    return None


@contextmanager
def _private_folder(within: Path | None) -> Iterator[Path]:
    """A new folder that only this user can reach, whatever is above it."""
    with TemporaryDirectory(dir=within, prefix="fedavg-") as made:
        folder = Path(made)
        unsafe = _unsafe_part(folder)
        if unsafe is not None:
            raise PermissionError(EPERM, f"others can change {unsafe}")
        yield folder


def _unsafe_part(folder: Path) -> Path | None:
    """The first folder on the way to this one that another user could change; None if there is none.

    Both the way as it is written and as it is without links count. In a folder with the sticky bit, such as /tmp,
    others can make entries, but not touch those of this user or of the system.
    """
    if os.name != "posix":
        return folder
    written, resolved = folder.absolute(), folder.resolve(strict=True)
    for part in (*reversed(written.parents), written, *reversed(resolved.parents), resolved):
        status = part.lstat()
        trusted = status.st_uid in (0, os.getuid())
        shared = status.st_mode & 0o022 and not (status.st_mode & S_ISVTX) and not S_ISLNK(status.st_mode)
        if not trusted or shared:
            return part
    status = resolved.stat()
    return resolved if status.st_uid != os.getuid() or status.st_mode & 0o022 else None


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return "the compiler fails at it"
    return str(getattr(error, "strerror", None) or error)


@cache
def _say(message: str) -> None:
    """Once in a process."""
    log.warning(message)


def _digest(source: Path, compiler: list[str]) -> str:
    """Of all that a build hangs on: the source and what it includes, the compiler, and the processor."""
    version = subprocess.run([*compiler, "--version"], check=True, capture_output=True, timeout=BUILD_TIMEOUT_S).stdout
    sources = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    parts = [*sources, repr((compiler, FLAGS, _instructions())).encode(), version]
    return sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()[:16]


@cache
def _instructions() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return [platform.machine(), platform.processor()]
    return sorted({line for line in lines if line.startswith(INSTRUCTIONS)})


def call(built: ctypes.CDLL, name: str, sizes: tuple[int, ...], tensors: tuple[Tensor | None, ...]) -> None:
    """Run a function of the library on whole numbers and dense tensors (None is a null pointer)."""
    places = [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]
    if getattr(built, name)(*sizes, *places):
        raise MemoryError(f"{name} of {sizes}")
