"""Kernels in C, built once per process where there is a C compiler; whoever has one also has a way to do without.

Knows the compiler and how arrays are handed over. Whether a kernel runs hangs on the machine and on FEDAVG_NATIVE alone
(0: never build), never on a timing, since kernels round differently from what they stand in for.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from torch import Tensor

#: Set to 0, nothing is built though there is a compiler.
VARIABLE: Final = "FEDAVG_NATIVE"
FLAGS: Final = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC")
BUILD_TIMEOUT_S: Final = 60


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """The code of a C file, if it can be built here."""
    named = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if os.environ.get(VARIABLE) == "0" or not named:
        return None
    with TemporaryDirectory() as folder:
        target = Path(folder) / f"{source.stem}.so"
        try:
            command = [*shlex.split(named), *FLAGS, "-o", str(target), str(source)]
            subprocess.run(command, check=True, capture_output=True, timeout=BUILD_TIMEOUT_S)
            return ctypes.CDLL(str(target))
        except (OSError, subprocess.SubprocessError):  # a compiler that can not do this is as good as none
            return None


def call(built: ctypes.CDLL, name: str, sizes: tuple[int, ...], tensors: tuple[Tensor | None, ...]) -> None:
    """Run a function of the library on whole numbers and dense tensors (None is a null pointer)."""
    places = [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]
    if getattr(built, name)(*sizes, *places):
        raise MemoryError(f"{name} of {sizes}")
