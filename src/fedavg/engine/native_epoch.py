"""Local epochs by a program of our own kernels (`program.py`), called like the TorchScript ones."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedavg import native
from fedavg.engine.emit import Kind
from fedavg.engine.lengths import at_length
from fedavg.engine.pieces import Piece, single
from fedavg.engine.program import ALIGNED, SCALARS, Program, write_program
from fedavg.engine.step_calls import StepCalls
from fedavg.engine.tape import Layout, Tape
from fedavg.engine.writer import Unsupported
from fedavg.optimizers.optimizer import Steps

SOURCE: Final = Path(__file__).with_name("program.c")


class Arena:
    """Memory for the tensors of a step: as much as the largest step needs, kept from step to step."""

    def __init__(self) -> None:
        self._memory, self._start, self._room = np.empty(0, np.uint8), 0, 0

    def start(self, size: int) -> int:
        """The address of `size` bytes."""
        if self._room < size:
            self._memory, self._room = np.empty(size + ALIGNED, np.uint8), size
            self._start = -(-self._memory.ctypes.data // ALIGNED) * ALIGNED
        return self._start


@dataclass(frozen=True)
class Prepared:
    """The program for batches of one length, the memory layout of its inputs, and the words that a call fills in."""

    program: Program
    code: ctypes.c_void_p
    layouts: list[Layout]
    #: Where each array begins: the inputs, what is kept, the arguments of each call, the arena.
    arrays: "ctypes.Array[ctypes.c_int64]"
    scalars: "ctypes.Array[ctypes.c_float]"
    #: The bytes by which each input advances from batch to batch.
    moves: "ctypes.Array[ctypes.c_int64]"


class NativeEpoch:
    """The epochs of one tape, for batches of all lengths or of one; each length has a program, written at first use."""

    def __init__(self, tape: Tape, kind: Kind, parameters: list[Tensor], calls: StepCalls, arena: Arena) -> None:
        self._tape, self._kind, self._calls, self._arena = tape, kind, calls, arena
        self._kept = [*parameters, *tape.state_tensors]
        self._prepared: dict[int, Prepared] = {}

    def prepare(self, length: int) -> Prepared:
        """What batches of a length need. Raises `Unsupported`."""
        if length not in self._prepared:
            tape = at_length(self._tape, length)
            program = write_program(tape, self._kind)
            layouts = [tape.layouts[name] for name in tape.inputs]
            arrays = (ctypes.c_int64 * len(program.arrays))(*[0] * len(layouts), *_addresses(self._kept))
            numbers = [*[0.0] * len(SCALARS), *program.constants]
            scalars, moves = (ctypes.c_float * len(numbers))(*numbers), (ctypes.c_int64 * len(layouts))()
            code = ctypes.c_void_p(program.code.data_ptr())
            self._prepared[length] = Prepared(program, code, layouts, arrays, scalars, moves)
        return self._prepared[length]

    def __call__(self, piece: Piece, steps: Steps) -> float:
        library, told = built(), self._calls.of(steps)
        assert library, "looked at by `native_epoch`"
        data, batch = piece.leaves, piece.batch
        how = self.prepare(batch)
        program, arrays, scalars, moves = how.program, how.arrays, how.scalars, how.moves
        inputs = [_laid_out(leaf, layout, batch) for leaf, layout in zip(data, how.layouts, strict=True)]
        arrays[: len(inputs)] = [*_addresses(inputs)]
        arrays[len(inputs) + len(self._kept) :] = [*told.addresses, self._arena.start(program.arena_bytes)]
        moves[:] = [leaf.stride(0) * batch * leaf.element_size() for leaf in inputs]
        lr, pull, mu = told.numbers
        scalars[: len(SCALARS)] = [0.0, 1.0, -lr, mu, lr * pull, pull, -lr * (1 + mu), lr * mu]
        total = ctypes.c_double(0.0)
        failed = library.epoch(
            how.code, ctypes.c_long(program.code.shape[0]), arrays, scalars,
            ctypes.c_int(data[0].shape[0] // batch), ctypes.c_int(len(inputs)), moves,
            ctypes.c_long(program.loss[0]), ctypes.c_long(program.loss[1]), ctypes.byref(total),
        )  # fmt: skip
        if failed:
            raise IndexError("a target or a token is out of bounds: it is no class, or has no row in an embedding")
        return single(total.value * batch)


def built() -> ctypes.CDLL | None:
    return native.library(SOURCE)


def native_epoch(
    tape: Tape, kind: Kind, parameters: list[Tensor], calls: StepCalls, arena: Arena, length: int
) -> NativeEpoch | None:
    """The epochs of a tape by our own kernels; None if this machine has none, or an operator has none."""
    if built() is None:
        return None
    epoch = NativeEpoch(tape, kind, parameters, calls, arena)
    try:
        epoch.prepare(length)
    except Unsupported:
        return None
    return epoch


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _laid_out(leaf: Tensor, layout: Layout, batch: int) -> Tensor:
    """The examples in the memory layout that they had when the step was recorded."""
    if leaf.stride() == layout.strides:
        return leaf
    pairs = zip(leaf.shape[1:], leaf.stride()[1:], layout.strides[1:], strict=True)
    same = all(size == 1 or now == then for size, now, then in pairs)
    if same and (batch == 1 or leaf.stride(0) == layout.strides[0]):
        return leaf
    return torch.empty_strided(leaf.shape, layout.strides, dtype=leaf.dtype).copy_(leaf)
