"""How a kernel is built and how its file is named, for this machine and for a wheel.

Needs only the standard library, and no other module of the package: the wheel build (`hatch_build.py`) loads this file
by its path.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

#: No -march=native where wheels ship kernels, so that a build on the user's machine computes the same as the wheel's.
FLAGS: Final = ("-O3", "-std=gnu11", "-shared", "-fPIC")
BUILD_TIMEOUT_S: Final = 600
#: A kernel's file begins with the SHA-256 of the code.
DIGEST_BYTES: Final = 32


@dataclass(frozen=True)
class Level:
    """An instruction set: its name, the features that it needs by the compiler's names, and the flags for it."""

    name: str
    needs: frozenset[str]
    flags: tuple[str, ...]


_AVX2: Final = ("avx2", "fma", "f16c", "bmi", "bmi2")
_AVX512: Final = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
#: Features that Linux names differently from the compiler.
_SPELLED: Final = {"bmi": "bmi1"}

#: x86-64, best first.
LEVELS: Final = (
    Level("avx512", frozenset((*_AVX2, *_AVX512)), tuple(f"-m{name}" for name in (*_AVX2, *_AVX512))),
    Level("avx2", frozenset(_AVX2), tuple(f"-m{name}" for name in _AVX2)),
)
#: Any other processor: built on it, with all its instructions.
NATIVE: Final = Level("native", frozenset(), ("-march=native",))


def best_level(features: frozenset[str]) -> Level:
    """The best level for a processor with these features, by Linux's names."""
    return next((level for level in LEVELS if features_of(level) <= features), NATIVE)


def features_of(level: Level) -> frozenset[str]:
    """The features that a level needs, by Linux's names."""
    return frozenset(_SPELLED.get(name, name) for name in level.needs)


def find_compiler(environment: Mapping[str, str]) -> list[str] | None:
    """The command of the C compiler: CC, or the system's."""
    named = environment.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return shlex.split(named) if named else None


def kernel_name(source: Path, level: Level) -> str:
    """The name of a kernel in a wheel; it depends on the source and the flags."""
    return f"{source.stem}-{level.name}-{sources_digest(source, level)}.kernel"


def sources_digest(source: Path, level: Level) -> str:
    """A digest of the source, of all that it includes, and of the flags."""
    parts = [repr((FLAGS, level.flags)).encode(), *(path.read_bytes() for path in _included(source))]
    return sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()[:16]


def _included(source: Path) -> list[Path]:
    """The source and those of our own files that it includes, directly or indirectly."""
    found = [source.resolve()]
    for path in found:
        named = re.findall(r'^#include "(.+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
        found += [target for name in named if (target := (path.parent / name).resolve()) not in found]
    return found


def built(source: Path, level: Level, compiler: list[str], within: Path | None = None) -> bytes:
    """The code, compiled in a separate folder."""
    with TemporaryDirectory(dir=within, prefix="fedavg-") as folder:
        target = Path(folder) / f"{source.stem}.so"
        command = [*compiler, *FLAGS, *level.flags, "-o", str(target), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_TIMEOUT_S)
        return target.read_bytes()


def sealed(code: bytes) -> bytes:
    return sha256(code).digest() + code


def unsealed(data: bytes) -> bytes | None:
    """The code in a kernel's file; None if the file is damaged."""
    digest, code = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    return code if sha256(code).digest() == digest else None
