"""The LSTM's recurrence in C, where there is a C compiler: twice as fast as in TorchScript.

This module knows the calling convention; `lstm.py` has the equations and the loop that runs everywhere. The two round
differently: `kernel` names the one that runs, for the record.
"""

from ctypes import CDLL
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from fedavg import native

SOURCE: Final = Path(__file__).with_suffix(".c")


def kernel(units: int) -> str:
    """What runs the recurrence of float32 layers of this size on this machine's CPU: 'native' or 'torchscript'."""
    return "native" if _library(units) else "torchscript"


def fits(x: Tensor, units: int) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and _library(units) is not None


def scan(gates_x: Tensor, w_hh: Tensor, peephole: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    steps, batch, gates = gates_x.shape
    units = gates // 4
    h, c, tanh_c = (gates_x.new_empty(steps, batch, units) for _ in range(3))
    out = gates_x.new_empty(gates_x.shape)
    _call("scan", (steps, batch, units), (gates_x, w_hh, peephole, keep), (h, c, tanh_c, out))
    return h, c, tanh_c, out


def scan_backward(
    dh: Tensor, w_hh: Tensor, peephole: Tensor, keep: Tensor, c: Tensor, tanh_c: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    dz, d_peephole = torch.empty_like(gates), torch.empty_like(peephole)
    inputs = (dh, w_hh, peephole, keep, c, tanh_c, gates)
    _call("scan_back", tuple(c.shape), inputs, (dz, d_peephole))
    return dz, d_peephole


def _call(name: str, sizes: tuple[int, ...], inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    built = _library(sizes[-1])
    assert built, "fits() said so"
    native.call(built, name, sizes, (*(tensor.contiguous() for tensor in inputs), *outputs))


def _library(units: int) -> CDLL | None:
    """The compiled code, if it is available and supports layers of this size."""
    built = native.library(SOURCE)
    return built if built and units % built.strip() == 0 else None
