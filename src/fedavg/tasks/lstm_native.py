"""The LSTM's recurrence in C, built once per process where there is a C compiler: twice as fast as in TorchScript.

Knows the compiler and the calling convention; `lstm.py` has the equations and the loop that runs everywhere. Which of
the two runs hangs on the machine and on FEDAVG_NATIVE alone (0: never build), never on a timing, since they round
differently: `kernel` gives its name for the record.
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

import torch
from torch import Tensor

#: Set to 0, the TorchScript loop runs though there is a compiler.
VARIABLE: Final = "FEDAVG_NATIVE"
SOURCE: Final = Path(__file__).with_suffix(".c")
FLAGS: Final = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC")
BUILD_TIMEOUT_S: Final = 60


def kernel(units: int) -> str:
    """What runs the recurrence of float32 layers of this size on this machine's CPU: 'native' or 'torchscript'."""
    return "native" if _library(units) else "torchscript"


def fits(x: Tensor, units: int) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and _library(units) is not None


def scan(gates_x: Tensor, w_hh: Tensor, peephole: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    steps, batch, gates = gates_x.shape
    units = gates // 4
    h, c, tanh_c = (gates_x.new_empty(steps, batch, units) for _ in range(3))
    out = gates_x.new_empty(gates_x.shape)
    _call("peephole_scan", (steps, batch, units), (gates_x, w_hh, peephole), (h, c, tanh_c, out))
    return h, c, tanh_c, out


def scan_backward(
    dh: Tensor, w_hh: Tensor, peephole: Tensor, c: Tensor, tanh_c: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    dz, d_peephole = torch.empty_like(gates), torch.empty_like(peephole)
    inputs = (dh, w_hh, peephole, c, tanh_c, gates)
    _call("peephole_scan_backward", tuple(c.shape), inputs, (dz, d_peephole))
    return dz, d_peephole


def _call(name: str, sizes: tuple[int, ...], inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    dense = [tensor.contiguous() for tensor in inputs]  # named, so that copies live until the call is over
    places = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*dense, *outputs)]
    if getattr(_library(sizes[-1]), name)(*sizes, *places):
        raise MemoryError(f"{name} of {sizes} (steps, batch, units)")


def _library(units: int) -> ctypes.CDLL | None:
    """The built code, if it can be had and does layers of this size."""
    library = _build()
    return library if library and units % library.panel() == 0 else None


@cache
def _build() -> ctypes.CDLL | None:
    named = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if os.environ.get(VARIABLE) == "0" or not named:
        return None
    with TemporaryDirectory() as folder:
        target = Path(folder) / "lstm.so"
        try:
            command = [*shlex.split(named), *FLAGS, "-o", str(target), str(SOURCE)]
            subprocess.run(command, check=True, capture_output=True, timeout=BUILD_TIMEOUT_S)
            return ctypes.CDLL(str(target))
        except (OSError, subprocess.SubprocessError):  # a compiler that can not do this is as good as none
            return None
