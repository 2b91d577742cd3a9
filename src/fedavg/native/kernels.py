"""Finds the code of a kernel: in the wheel, among this user's earlier builds, or from the compiler."""

import ctypes
import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from fedavg.errors import DiskError, FedAvgError
from fedavg.files import write_atomically
from fedavg.native import recipe
from fedavg.native.folders import own_folder, private_folder, say
from fedavg.native.recipe import LEVELS, NATIVE, Level

#: 0: no kernels; avx2 or avx512: this instruction set, even if the processor has a better one; otherwise its best.
VARIABLE: Final = "FEDAVG_NATIVE"
#: Where a wheel stores its kernels.
PREBUILT: Final = Path(__file__).parent / "prebuilt"
#: Lines of /proc/cpuinfo that identify the instruction set: `-march=native` uses all of it.
INSTRUCTIONS: Final = ("model name", "flags", "Features", "CPU part")


@dataclass(frozen=True)
class FoundKernel:
    """A kernel's code, if available, and a text that says where it came from or why there is none."""

    library: ctypes.CDLL | None
    origin: str


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """The compiled code of a C file, if available here."""
    return found(source).library


def found(source: Path) -> FoundKernel:
    """The same, with its origin."""
    level = in_use()
    if level is None:
        return FoundKernel(None, f"{VARIABLE}=0")
    code = _prebuilt(source, level)
    if code is not None:
        return _loaded(source, code, f"comes with the package, for {level.name}")
    compiler = recipe.find_compiler(os.environ)
    if compiler is None:
        return FoundKernel(None, f"no C compiler (CC, cc, gcc, clang), and the package has none for {level.name}")
    try:
        code = _compiled(source, level, compiler)
    except (OSError, subprocess.SubprocessError) as error:  # a compiler that fails counts as no compiler
        return _unusable(source, error)
    return _loaded(source, code, f"built here by {compiler[0]}, for {level.name}")


def in_use() -> Level | None:
    """The instruction set that kernels use in this process; None if kernels are switched off."""
    asked = os.environ.get(VARIABLE, "")
    if asked == "0":
        return None
    best = recipe.best_level(features()) if _is_x86() else NATIVE
    if asked in ("", "1"):
        return best
    possible = [level for level in LEVELS if _is_x86() and best is not NATIVE and level.needs <= best.needs]
    for level in possible:
        if level.name == asked:
            return level
    names = ", ".join(level.name for level in possible)
    raise FedAvgError(
        f"{VARIABLE}: got '{asked}'; expected 0 (no kernels)" + (f", or one of {names}" if names else "") + ", or unset"
    )


def marked(engine: str) -> str:
    """An engine's name with the instruction set of its kernels, if it has any: other instructions round differently.

    >>> marked("plain")
    'plain'
    """
    level = in_use() if "native" in engine else None
    return f"{engine} ({level.name})" if level else engine


def compiler() -> list[str] | None:
    """The command of the C compiler, if there is one."""
    return recipe.find_compiler(os.environ)


@cache
def features() -> frozenset[str]:
    """The features of the processor and the system, by Linux's names; on other systems, as far as PyTorch knows."""
    for row in instructions():
        if row.startswith("flags"):
            return frozenset(row.partition(":")[2].split())
    capability = torch.backends.cpu.get_cpu_capability().lower()
    return next((recipe.features_of(level) for level in LEVELS if level.name == capability), frozenset())


@cache
def instructions() -> tuple[str, ...]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return (platform.machine(), platform.processor())
    return tuple(sorted({line for line in lines if line.startswith(INSTRUCTIONS)}))


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _prebuilt(source: Path, level: Level) -> bytes | None:
    """The kernel that came with the package, if it was built from exactly this source."""
    return _read(PREBUILT / recipe.kernel_name(source, level)) if PREBUILT.is_dir() else None


def _compiled(source: Path, level: Level, compiler: list[str]) -> bytes:
    folder = own_folder()
    kept = folder / f"{source.stem}-{_digest(source, level, compiler)}.kernel" if folder else None
    code = _read(kept) if kept else None
    if code is None:
        with private_folder(folder) as building:
            code = recipe.built(source, level, compiler, building)
        if kept:
            with suppress(DiskError):  # disk full: the next process builds it again
                write_atomically(kept, recipe.sealed(code), durable=False, private=True)
    return code


def _loaded(source: Path, code: bytes, origin: str) -> FoundKernel:
    """Loads exactly these bytes, from a new file that no other user can reach."""
    try:
        with private_folder(own_folder()) as loading:
            target = loading / f"{source.stem}.so"
            target.write_bytes(code)
            return FoundKernel(ctypes.CDLL(str(target)), origin)
    except OSError as error:
        return _unusable(source, error)


def _unusable(source: Path, error: Exception) -> FoundKernel:
    failed = isinstance(error, subprocess.CalledProcessError)
    reason = "the compiler fails at it" if failed else str(getattr(error, "strerror", None) or error)
    say(f"{source.name} is not used: {reason}; PyTorch's own operators run in its place")
    return FoundKernel(None, reason)


def _read(path: Path) -> bytes | None:
    """An earlier build; None if there is none or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    code = recipe.unsealed(data)
    if code is None:
        say(f"{path} is damaged: it is built again")
    return code


def _digest(source: Path, level: Level, compiler: list[str]) -> str:
    """A digest of all that a build depends on: sources, flags, compiler, and for `native` the processor."""
    asked = [*compiler, "--version"]
    version = subprocess.run(asked, check=True, capture_output=True, timeout=recipe.BUILD_TIMEOUT_S).stdout
    processor = instructions() if level is NATIVE else ()
    parts = [recipe.sources_digest(source, level).encode(), repr((compiler, processor)).encode(), version]
    return sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()[:16]


def call(built: ctypes.CDLL, name: str, sizes: tuple[int, ...], tensors: tuple[Tensor | None, ...]) -> None:
    """Run a function of the library on integers and dense tensors (None is a null pointer)."""
    places = [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]
    if getattr(built, name)(*sizes, *places):
        raise MemoryError(f"{name} of {sizes}")
