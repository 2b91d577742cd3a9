"""Kernels in C, built once per machine where there is a C compiler; whoever has one also has a way to do without.

Knows the compiler, where builds are kept, and how arrays are handed over. Whether a kernel runs hangs on the machine
and on FEDAVG_NATIVE alone (0: never build), never on a timing, since kernels round differently from what they stand in
for.
"""

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from torch import Tensor

from fedavg.files import user_cache

#: Set to 0, nothing is built though there is a compiler.
VARIABLE: Final = "FEDAVG_NATIVE"
FLAGS: Final = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC")
BUILD_TIMEOUT_S: Final = 60
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
    except (OSError, subprocess.SubprocessError):  # a compiler that can not do this is as good as none
        return None


def _library(source: Path, compiler: list[str]) -> ctypes.CDLL:
    folder = _own_folder()
    kept = folder / f"{source.stem}-{_digest(source, compiler)}.so" if folder else None
    if kept and kept.exists():
        try:
            return ctypes.CDLL(str(kept))
        except OSError:  # cut off, as by a crash of the machine: made again below
            pass
    with TemporaryDirectory(dir=folder) as building:
        target = Path(building) / f"{source.stem}.so"
        command = [*compiler, *FLAGS, "-o", str(target), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_TIMEOUT_S)
        return ctypes.CDLL(str(target.replace(kept) if kept else target))


def _own_folder() -> Path | None:
    """Where builds are kept; None where another user could put code there, or it can not be made."""
    folder = user_cache() / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    own = os.name == "posix" and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if own and os.access(folder, os.W_OK) else None


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
